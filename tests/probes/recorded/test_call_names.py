import pytest

from probes.recorded.call_names import call_kind, call_layer, plain_name


@pytest.mark.parametrize(
    ("name", "kind", "layer"),
    [
        ("cudaLaunchKernel", "launch", "runtime"),
        ("cudaLaunchKernel_ptsz", "launch", "runtime"),
        ("cudaLaunchKernelExC_v11060", "launch", "runtime"),
        ("cuLaunchKernelEx", "launch", "driver"),
        ("cudaLaunchCooperativeKernel", "launch", "runtime"),
        ("hipExtModuleLaunchKernel", "launch", "runtime"),
        ("hipModuleLaunchKernel", "launch", "runtime"),
        ("cudaLaunchHostFunc", "other", "runtime"),
        ("cudaGraphLaunch_v10000", "graph_launch", "runtime"),
        ("hipGraphLaunch", "graph_launch", "runtime"),
        ("cuGraphInstantiateWithFlags", "graph", "driver"),
        ("cudaStreamBeginCapture", "capture", "runtime"),
        ("cudaStreamSynchronize_v3020", "sync", "runtime"),
        ("cuCtxSynchronize", "sync", "driver"),
        ("cudaEventQuery", "query", "runtime"),
        ("cudaStreamWaitEvent", "wait", "runtime"),
        ("cudaMemcpyAsync", "copy", "runtime"),
        ("cuMemcpyHtoDAsync_v2", "copy", "driver"),
        ("cudaMemsetAsync", "set", "runtime"),
        ("cudaMalloc", "memory", "runtime"),
        ("cuMemAlloc", "memory", "driver"),
        ("cuModuleLoadData", "module", "driver"),
        ("cuLibraryLoadData", "module", "driver"),
        ("cudaEventRecordWithFlags", "event", "runtime"),
        ("cudaStreamGetPriority", "stream", "runtime"),
        ("cudaSetDevice", "device", "runtime"),
        ("ncclAllReduce", "collective", "nccl"),
        ("", "other", "runtime"),
    ],
)
def test_kind_and_layer(name, kind, layer):
    assert (call_kind(name), call_layer(name)) == (kind, layer)


def test_plain_name_drops_only_the_exporter_version():
    assert plain_name("cudaMemcpyAsync_v3020") == "cudaMemcpyAsync"
    assert plain_name("cuMemcpyHtoDAsync_v2") == "cuMemcpyHtoDAsync_v2"
