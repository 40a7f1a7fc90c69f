"""CUDA graphs in one shared pool, captured on one side stream; also what torch calls so on ROCm."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adaverify_contracts import CaptureError
from adaverify_contracts.describing import kind_of, text_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CudaStep:
    """A recorded step with what it returned; the tensors it returned are overwritten by every replay.

    ``run`` is kept because it owns whatever else the recording reads.
    """

    graph: Any
    result: Any
    run: Callable[[], Any]

    def replay(self) -> Any:
        """Launch the recording on the current stream; nothing is waited for."""
        self.graph.replay()
        return self.result


@dataclass(eq=False)
class _Pool:
    """One memory pool: what its captures took, and which of them are alive; it lives as long as one."""

    handle: Any
    held: int = 0
    peak: int = 0
    steps: weakref.WeakSet[CudaStep] = field(default_factory=weakref.WeakSet)


class CudaGraphBackend:
    """Records steps with ``torch.cuda.CUDAGraph``.

    Args:
        device: the CUDA (or ROCm) device.
        runtime: ``torch.cuda`` or an object with the same functions; None imports torch at first use.
        warmups: runs before each capture, at least 1, on the side stream. Kernels compile and libraries
            create their handles there, which a capture would not survive.
        error_mode: how strictly the driver watches other threads during a capture. ``thread_local`` lets a
            relay query its events from another thread meanwhile; ``global`` would end the capture.

    torch's own ``torch.cuda.graph`` leaves the side stream current when ending a broken capture raises, so
    that every later launch goes astray. Capture is driven by hand here and the stream restored in any case.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        runtime: Any = None,
        warmups: int = 2,
        error_mode: str = "thread_local",
    ) -> None:
        if warmups < 1:
            raise CaptureError(
                "a capture needs a warm-up",
                arrived=warmups,
                allowed="an int >= 1",
                remedy="leave warmups at its default",
            )
        self.device = device
        self._given_runtime = runtime
        self._warmups = warmups
        self._error_mode = error_mode
        self._stream: Any = None
        self._pools: list[_Pool] = []
        self._pool: _Pool | None = None

    def estimate(self, run: Callable[[], Any]) -> int:
        """Return the bytes a capture of ``run`` is expected to add; runs the step once on the side stream.

        The step's peak beyond what the largest earlier capture needed: captures share one pool and never run
        at the same time. Tensors that steps return are not shared and not counted. Resets torch's peak
        statistics. Not capturable.
        """
        with self._side_stream() as cuda:
            peak = self._peak(cuda, run)
        pool = self._live_pool()
        return max(0, peak - (pool.peak if pool else 0))

    def capture(self, run: Callable[[], Any]) -> CudaStep:
        """Warm up and record ``run``; nothing of it has taken effect except the warm-up runs.

        Raises:
            CaptureError: the step failed in its warm-up or cannot be recorded. The current stream is the one
                before, and later captures use a fresh pool, since the allocator may not have closed this one.
        """
        peak = self._warm_up(run)
        cuda = self._cuda
        with cuda.device(self.device):
            cuda.synchronize()
            gc.collect()
            # The warm-up's cached blocks go back to the driver, so that the difference below is the pool's.
            cuda.empty_cache()
            free = cuda.mem_get_info()[0]
            pool = self._live_pool() or self._open_pool(cuda)
            graph = cuda.CUDAGraph()
            try:
                result = self._record(cuda, graph, pool, run)
            except BaseException as error:
                self._pool = None
                if not isinstance(error, Exception):
                    raise
                raise _failed("could not be recorded", error) from error
            cuda.synchronize()
            pool.held += max(0, free - cuda.mem_get_info()[0])
        pool.peak = max(pool.peak, peak)
        step = CudaStep(graph, result, run)
        pool.steps.add(step)
        return step

    def pool_bytes(self) -> int:
        """Return the device memory that went during the captures still alive, the driver's share included.

        Measured as free memory before and after each capture: other processes on the device blur it.
        """
        return sum(pool.held for pool in self._pools if pool.steps)

    def _live_pool(self) -> _Pool | None:
        """Return the pool in use, None when its last graph is gone and its memory with it."""
        if self._pool is not None and not self._pool.steps:
            self._pool = None
        return self._pool

    def _open_pool(self, cuda: Any) -> _Pool:
        self._pools = [pool for pool in self._pools if pool.steps]
        self._pool = _Pool(cuda.graph_pool_handle())
        self._pools.append(self._pool)
        return self._pool

    @property
    def _cuda(self) -> Any:
        if self._given_runtime is None:
            import torch

            self._given_runtime = torch.cuda
        return self._given_runtime

    @contextmanager
    def _side_stream(self) -> Iterator[Any]:
        """Make the side stream current, ordered after and before the stream that is current now."""
        cuda = self._cuda
        with cuda.device(self.device):
            before = cuda.current_stream()
            if self._stream is None:
                self._stream = cuda.Stream()
            self._stream.wait_stream(before)
            cuda.set_stream(self._stream)
            try:
                yield cuda
            except BaseException:
                cuda.set_stream(before)
                with suppress(Exception):
                    before.wait_stream(self._stream)
                raise
            cuda.set_stream(before)
            before.wait_stream(self._stream)

    def _peak(self, cuda: Any, run: Callable[[], Any]) -> int:
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        base = cuda.memory_allocated()
        run()
        cuda.synchronize()
        return int(cuda.max_memory_allocated() - base)

    def _warm_up(self, run: Callable[[], Any]) -> int:
        """Run the step and return its peak in bytes."""
        try:
            with self._side_stream() as cuda:
                for _ in range(self._warmups - 1):
                    run()
                return self._peak(cuda, run)
        except Exception as error:
            with suppress(Exception):
                self._cuda.empty_cache()
            raise _failed("failed in its warm-up", error) from error

    def _record(self, cuda: Any, graph: Any, pool: _Pool, run: Callable[[], Any]) -> Any:
        before = cuda.current_stream()
        collecting = gc.isenabled()
        # A collection inside a capture may free device memory or another graph, which ends the capture.
        gc.disable()
        generator, state = _random_state(cuda)
        cuda.set_stream(self._stream)
        try:
            graph.capture_begin(pool=pool.handle, capture_error_mode=self._error_mode)
            try:
                result = run()
            except BaseException:
                # The step's own error is the cause; ending a broken capture only repeats it.
                with suppress(Exception):
                    graph.capture_end()
                with suppress(Exception):
                    graph.reset()
                raise
            graph.capture_end()
            return result
        except BaseException:
            # A capture that never ended leaves the generator in capture mode: every later draw would raise
            # "Offset increment outside graph capture" (seen with torch 2.11).
            if generator is not None:
                generator.graphsafe_set_state(state)
            raise
        finally:
            cuda.set_stream(before)
            if collecting:
                gc.enable()


def _random_state(cuda: Any) -> tuple[Any, Any]:
    """Return the current device's default generator and a copy of its state, or (None, None)."""
    generators = getattr(cuda, "default_generators", ())
    index = cuda.current_device() if generators else 0
    if index >= len(generators):
        return None, None
    return generators[index], generators[index].clone_state()


def _failed(how: str, error: Exception) -> CaptureError:
    text = " ".join(text_of(error).split()) or "no message"
    return CaptureError(
        f"the step {how}: {kind_of(error)}: {text}",
        remedy="run this size without a graph, or cure the cause and capture again",
    )
