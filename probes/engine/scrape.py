"""The probe of inference engines: scrapes their metrics pages, each in a thread of its own.

An endpoint that hangs, drips, resets, sends 50 MB or something else costs one event and a gap;
the recorder never waits for one, and a stale page is never repeated as a new one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from analysis.schema import ENGINE_SAMPLE, EVENT, Table
from probes.engine.exposition import MAX_LINES, ExpositionParser
from probes.engine.fetch import Fetcher, FetchError, Page, enter_network_of, public_url
from probes.engine.one_engine import OneEngine
from probes.engine.reading import PageReader
from probes.engine.search import EndpointSearch
from probes.engine.settings import with_path
from probes.probe import Batch, PidSource, ProbeError, SourceReport, make_batch

SECOND_NS = 1_000_000_000
#: A failing endpoint is asked ever less often, up to this.
_MAX_PAUSE_NS = 5 * SECOND_NS
#: Share of the time that scraping may take, and the longest interval that it falls back to.
_MOST_SHARE = 0.05
_SLOWEST_NS = 10 * SECOND_NS
#: Characters of pages kept unread at most.
_MAX_HELD_CHARACTERS = 1 << 20


class Scraper(threading.Thread):
    """Scrapes one endpoint once per interval; batches are taken with :meth:`take`.

    Args:
        url: The metrics page.
        interval_ns: Time between the begins of two scrapes.
        deadline_ns: Most time for one.
        namespace: Network namespace to ask from, as a path; None is the present one.
        hold_ns: Longest time that rows are kept back, to hand them over in bulk.
        clock: CLOCK_MONOTONIC in ns.

    Raises:
        FetchError: the URL is none that can be fetched.
    """

    def __init__(
        self,
        url: str,
        interval_ns: int = SECOND_NS,
        deadline_ns: int = 2 * SECOND_NS,
        namespace: str | None = None,
        hold_ns: int = SECOND_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(name="engine-scraper", daemon=True)
        self.url = public_url(url)
        self.n_scrapes = 0
        self.n_failures = 0
        self.cost_ns = 0
        self.longest_ns = 0
        self.n_bad_lines = 0
        self.is_lost = False
        self.reader = PageReader(self.url)
        self._parser = ExpositionParser()
        self._one_engine = OneEngine()
        self._fetcher = Fetcher(url, deadline_ns, clock, keep=True)
        self._interval_ns = interval_ns
        #: Time between two scrapes as it is now, and what one costs, on average.
        self.paced_ns = interval_ns
        self._usual_ns = 0
        self._deadline_ns = deadline_ns
        self._namespace = namespace
        #: Identity of the network that it asks from; empty for the recorder's own.
        self.network = _network(namespace)
        self._clock = clock
        self._stop_event = threading.Event()
        #: Held until it is to stop: waiting for a lock costs a fraction of waiting for an event.
        self._gate = threading.Lock()
        self._gate.acquire()
        self._lock = threading.Lock()
        self._ready: deque[Batch] = deque()
        self._pages: list[Page] = []
        self._busy_since: int | None = None
        self._taken_ns = 0
        self._hold_ns = hold_ns if interval_ns < hold_ns else 0

    def rename(self, name: str) -> None:
        """Call the endpoint otherwise in the rows, before it is started."""
        self.url = name
        self.reader = PageReader(name)

    def run(self) -> None:
        """Scrape until told to stop."""
        if self._namespace is not None:
            try:
                enter_network_of(self._namespace)
            except OSError as error:
                self._fail(f"its network namespace cannot be entered ({error.strerror})")
                return
        pause = self._interval_ns
        while not self._stop_event.is_set():
            self._busy_since = self._clock()
            is_good = self._scrape()
            self._busy_since = None
            spent_ns, self.cost_ns = -self.cost_ns, time.thread_time_ns()
            self.pace(spent_ns + self.cost_ns)
            pause = self.paced_ns if is_good else min(2 * pause, _MAX_PAUSE_NS)
            now = self._clock()
            # On the beat of the other sources: what was used just before costs less than what was
            # not for a while.
            self._gate.acquire(timeout=(pause - now % pause) / 1e9)
        self._fetcher.close()
        self._read_pages()

    def pace(self, spent_ns: int) -> None:
        """Scrape less often while a scrape costs too much of the time, and more often again after:
        a page of tens of thousands of lines that change must not cost a CPU.
        """
        self._usual_ns += (spent_ns - self._usual_ns) // 8
        if self._usual_ns > _MOST_SHARE * self.paced_ns:
            self.paced_ns = min(2 * self.paced_ns, max(_SLOWEST_NS, self._interval_ns))
        elif self._usual_ns < _MOST_SHARE / 4 * self.paced_ns:
            self.paced_ns = max(self.paced_ns // 2, self._interval_ns)

    def take(self, now_ns: int) -> list[Batch]:
        """Return what is ready; ends an exchange that is long overdue."""
        since = self._busy_since
        if since is not None and now_ns - since > self._deadline_ns + SECOND_NS // 4:
            self._fetcher.abort()
            self._fail(f"no whole answer within {self._deadline_ns / 1e9:g} s")
        elif not self.is_alive() and not self._stop_event.is_set():
            self._fail("its thread has ended")
        with self._lock:
            ready = list(self._ready)
            self._ready.clear()
        return ready

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        if not self._stop_event.is_set():
            self._stop_event.set()
            self._gate.release()
        self._fetcher.abort()

    def _scrape(self) -> bool:
        """One scrape; tells whether it brought rows."""
        self.n_scrapes += 1
        try:
            page = self._fetcher.get()
            self._busy_since = None  # what follows is ours, and no fault of the endpoint
        except FetchError as error:
            self._read_pages()
            self._one_engine.gap()
            self.n_failures += 1
            if not self._stop_event.is_set():
                self._fail(str(error))
            return False
        self._pages.append(page)
        n_characters = sum(len(kept.text) for kept in self._pages)
        is_doubtful = self.is_lost or self.reader.engine is None
        is_due = page.start_ns - self._taken_ns >= self._hold_ns
        if is_due or is_doubtful or n_characters > _MAX_HELD_CHARACTERS:
            return self._read_pages()
        return True

    def _read_pages(self) -> bool:
        """Read the pages kept, and make batches of them; tells whether the last one is good.

        Together, because one after the other they cost a quarter of what each costs alone after a
        pause.
        """
        pages, self._pages = self._pages, []
        is_good = [self._read(page) for page in pages]
        self._hand_over(self._clock())
        return is_good[-1] if is_good else False

    def _read(self, page: Page) -> bool:
        """Read one page; tells whether it brought rows."""
        parsed = self._parser.parse(page.text)
        self.n_bad_lines += parsed.n_bad_lines
        reason = None
        if parsed.is_too_long:
            reason = f"the page has more than {MAX_LINES:,} lines"
        elif not parsed.series:
            kind = page.content_type.split(";")[0] or "unknown content"
            reason = f"it sent no metrics ({kind})"
        elif not parsed.is_complete:
            reason = "the page broke off in the middle of a line"
        elif self._one_engine.is_mixed(parsed):
            reason = "several engines answer in turn; give the URL of each with --engine"
        middle, end_ns = page.start_ns + page.duration_ns // 2, page.start_ns + page.duration_ns
        if reason is not None or not self.reader.hold(parsed, middle, page.duration_ns):
            self.n_failures += 1
            self._fail(reason or "none of its metrics is of a known engine", end_ns)
            return False
        self.longest_ns = max(self.longest_ns, page.duration_ns)
        with self._lock:
            if self.is_lost:
                self.is_lost = False
                text = "The page is readable again."
                self._ready.append(self._event("source_recovered", text, end_ns))
        return True

    def _hand_over(self, now_ns: int) -> None:
        """Make batches of the pages held."""
        batches = self.reader.take()
        self._taken_ns = now_ns
        with self._lock:
            self._ready.extend(batches)

    def _fail(self, reason: str, time_ns: int | None = None) -> None:
        """Report the loss of the endpoint (now by default), once until it recovers."""
        with self._lock:
            if self.is_lost:
                return
            self.is_lost = True
            text = f"Metrics cannot be read: {reason}."
            self._ready.append(self._event("source_lost", text, time_ns or self._clock()))

    def _event(self, kind: str, detail: str, time_ns: int) -> Batch:
        columns = {
            "time_ns": [time_ns],
            "kind": [kind],
            "name": [f"engine {self.url}"],
            "detail": [detail],
        }
        return make_batch(EVENT, columns)


class EngineProbe:
    """Metrics of inference engines, given by URL or found among the tree's listening ports.

    Args:
        targets: Tells the recorded processes; endpoints are looked for among their ports.
        urls: Metrics pages, ``/metrics`` is added to a bare host; none is looked for then.
        interval_ns: Time between two scrapes.
        deadline_ns: Most time for one scrape.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        targets: PidSource | None = None,
        urls: Sequence[str] = (),
        interval_ns: int = SECOND_NS,
        deadline_ns: int = 2 * SECOND_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = "engine"
        self.tables: Sequence[Table] = (ENGINE_SAMPLE, EVENT)
        self.period_ns = SECOND_NS // 2
        self._targets = targets
        self._urls = [with_path(url) for url in urls]
        self._interval_ns = interval_ns
        self._deadline_ns = deadline_ns
        self._clock = clock
        self._scrapers: list[Scraper] = []
        #: Those whose page was found again in another network.
        self._replaced: list[Scraper] = []
        self._search: EndpointSearch | None = None
        self._searched_ns = 0
        self._n_rows = 0

    @property
    def endpoints(self) -> list[str]:
        """URLs being scraped."""
        return [scraper.url for scraper in self._scrapers]

    def start(self) -> None:
        """Begin scraping, or looking for endpoints.

        Raises:
            ProbeError: a URL is none that can be fetched.
        """
        for url in self._urls:
            try:
                self._add(url, None)
            except FetchError as error:
                raise ProbeError(f"{error}; give --engine http://HOST:PORT/metrics") from None
        if not self._urls and self._targets is not None:
            self._search = EndpointSearch(self._deadline_ns, self._targets.pids(), self._clock)
            self._search.start()

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return the rows of the scrapes that ended since the last call; never waits."""
        if self._search is not None and self._targets is not None:
            self._search.pids = self._targets.pids()
            for url, namespace in self._search.take():
                with contextlib.suppress(FetchError):
                    self._add(url, namespace)
        batches = [batch for scraper in self._scrapers for batch in scraper.take(now_ns)]
        self._n_rows += sum(
            batch.rows.num_rows for batch in batches if batch.table is ENGINE_SAMPLE
        )
        return batches

    def stop(self) -> Iterable[Batch]:
        """Stop scraping and return what is left."""
        if self._search is not None:
            self._search.stop()
            self._searched_ns = self._search.cost_ns
        for scraper in self._scrapers:
            scraper.stop()
        end = self._clock() + SECOND_NS // 5
        for scraper in self._scrapers:
            scraper.join(max(0.0, (end - self._clock()) / 1e9))
        self._search = None
        return self.drain(self._clock())

    def report(self) -> SourceReport:
        """Return what was scraped, at what cost, and how often it failed.

        A failed scrape is a gap, told by an event; no record that was there is lost.
        """
        note = ""
        if not self._scrapers:
            note = (
                "no metrics page was found among the listening ports of the processes; "
                "give --engine http://HOST:PORT/metrics"
            )
        lost = [scraper.url for scraper in self._scrapers if scraper.is_lost]
        if lost:
            note = f"{', '.join(lost)} could not be read at the end"
        elif slow := [item for item in self._scrapers if item.paced_ns > self._interval_ns]:
            seconds = max(item.paced_ns for item in slow) / 1e9
            note = f"a page is so large that it is read every {seconds:g} s only"
        return SourceReport(
            name=self.name,
            n_rows=self._n_rows,
            n_lost=0,
            cost_ns=sum(scraper.cost_ns for scraper in (*self._scrapers, *self._replaced))
            + (self._searched_ns if self._search is None else self._search.cost_ns),
            note=note,
            details={
                "endpoints": [
                    {
                        "url": scraper.url,
                        "engine": scraper.reader.engine,
                        "n_scrapes": scraper.n_scrapes,
                        "n_failures": scraper.n_failures,
                        "n_bad_lines": scraper.n_bad_lines,
                        "longest_ns": scraper.longest_ns,
                    }
                    for scraper in self._scrapers
                ]
            },
        )

    def _add(self, url: str, namespace: str | None) -> None:
        """Scrape a page, unless that is done already.

        A page that is found again belongs to an engine that was started again, or to one in another
        network: that one takes the place of one that is lost, and has a name of its own beside one
        that is not.
        """
        times = (self._interval_ns, self._deadline_ns)
        scraper = Scraper(url, *times, namespace, clock=self._clock)
        for other in [item for item in self._scrapers if item.url == scraper.url]:
            if other.network == scraper.network and other.is_alive():
                return
            if other.is_lost:
                other.stop()
                self._scrapers.remove(other)
                self._replaced.append(other)
                scraper.is_lost = True
            else:
                scraper.rename(f"{scraper.url} ({scraper.network})")
        self._scrapers.append(scraper)
        scraper.start()


def _network(namespace: str | None) -> str:
    """Identity of a network namespace (``net:[4026531840]``), its path when it is gone."""
    if namespace is None:
        return ""
    try:
        return str(Path(namespace).readlink())
    except OSError:
        return namespace
