from tracer.simulated.scenarios.judgement import judge
from tracer.simulated.scenarios.scenario import Expected


def verdict(cause: str, *findings: dict) -> dict:
    return {"verdict": {"cause": cause, "confidence": 0.9}, "findings": list(findings)}


def finding(cause: str, status: str = "found", text: str = "") -> dict:
    return {"cause": cause, "status": status, "summary": text}


def test_the_cause_and_its_culprit_have_to_be_right():
    expected = Expected("launch.cpu_delay", names_culprit=True)
    right = verdict("launch.cpu_delay", finding("launch.cpu_delay", text="by report-gen"))
    assert judge(expected, right, {"report-gen": 7}).is_right
    nameless = verdict("launch.cpu_delay", finding("launch.cpu_delay"))
    assert not judge(expected, nameless, {"report-gen": 7}).is_right
    wrong = verdict("launch.gil", finding("launch.gil", text="report-gen"))
    assert not judge(expected, wrong, {"report-gen": 7}).is_right


def test_healthy_may_not_come_with_findings():
    assert judge(Expected("healthy"), verdict("healthy")).is_right
    assert not judge(Expected("healthy"), verdict("healthy", finding("launch.gil"))).is_right
    assert judge(
        Expected("healthy"), verdict("healthy", finding("launch.gil", "not_found"))
    ).is_right


def test_undecided_is_right_only_where_it_is_allowed():
    undecided = verdict("unknown", finding("launch.first_use", "undecided"))
    assert not judge(Expected("launch.first_use"), undecided).is_right
    allowed = Expected("launch.first_use", statuses=("found", "undecided"))
    assert judge(allowed, undecided).is_right
    assert not judge(allowed, verdict("unknown")).is_right
