"""A decoder-only language model as its kernels: what a step of it launches and what that costs."""

from __future__ import annotations

from tracer.simulated.batching import Step
from tracer.simulated.computing import compute
from tracer.simulated.cuda import DEVICE_TO_HOST, HOST_TO_DEVICE, Cuda, Grid
from tracer.simulated.options import ServerOptions

#: Kernels of one layer in order, with the share of the layer's time that each takes.
LAYER_KERNELS = (
    ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", 0.012),
    ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", 0.17),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>", 0.012),
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>", 0.008),
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>", 0.11),
    ("ampere_bf16_s16816gemm_bf16_64x128_ldg8_f2f_stages_64x4_tn", 0.11),
    ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>", 0.012),
    ("ampere_bf16_s16816gemm_bf16_256x128_ldg8_f2f_stages_64x3_tn", 0.36),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>", 0.016),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x4_tn", 0.19),
)
EMBEDDING_KERNEL = "void at::native::index_select_kernel<c10::BFloat16, long, 8>"
LOGITS_KERNEL = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x6_tn"
SAMPLE_KERNEL = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps>>"
KERNELS = (
    *dict.fromkeys(name for name, _ in LAYER_KERNELS),
    EMBEDDING_KERNEL,
    LOGITS_KERNEL,
    SAMPLE_KERNEL,
)
#: Batch sizes that have a captured graph; a batch takes the next larger one.
GRAPH_SIZES = (1, 2, 4, 8, 16, 32)
_WEIGHTS_BYTES = 16 << 30
_CONTEXT_TOKEN_BYTES = 128 << 10
_INPUT_BYTES = 1 << 20


class Model:
    """The model of one engine on one device.

    A step with prompt tokens launches every kernel of every layer; a step of decodes only is one
    graph. Both end with the sampled tokens copied to the host and a wait for them.

    Args:
        options: Settings of the server.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.cuda = Cuda(options.runtime)
        self.stream = 0
        self._graphs: dict[int, int] = {}
        self._kernels: dict[str, int] = {}
        self._host = self._inputs = self._sampled = 0

    def load(self) -> None:
        """Make the context, register the kernels and allocate weights, pool and buffers."""
        options = self._options
        schedule = 4 if options.wait == "sleep" else 1
        self.cuda.set_device(options.device, schedule)
        self._kernels = self.cuda.register(KERNELS)
        self.stream = self.cuda.stream()
        self.cuda.malloc(_WEIGHTS_BYTES)
        self.cuda.malloc(options.n_blocks * options.block_tokens * _CONTEXT_TOKEN_BYTES)
        self._inputs = self.cuda.malloc(_INPUT_BYTES)
        self._sampled = self.cuda.malloc(_INPUT_BYTES)
        self._host = self.cuda.malloc_host(_INPUT_BYTES)

    def warm_up(self) -> None:
        """Use every kernel once and capture the decode graphs."""
        self._launch_layers(64, 1_000_000, 0)
        self._finish(1)
        if self._options.is_eager:
            return
        for size in GRAPH_SIZES:
            if size <= self._options.largest_graph:
                self._graph(size)

    def run(self, step: Step) -> None:
        """Compute one step and wait for its tokens."""
        options = self._options
        cuda = self.cuda
        n_samples = sum(request.n_samples for request in step.decodes)
        memory_ns = options.weights_ns + options.context_token_ns * step.n_context
        compute_ns = options.prefill_token_ns * (step.n_prefill_tokens + n_samples)
        n_bytes = 8 * (step.n_prefill_tokens + n_samples)
        cuda.copy(self._inputs, self._host, n_bytes, HOST_TO_DEVICE, self.stream)
        if step.n_prefill_tokens or options.is_eager or n_samples > options.largest_graph:
            self._launch_layers(step.n_prefill_tokens + n_samples, compute_ns, memory_ns)
        else:
            graph = self._graph(n_samples)
            cuda.graph_launch(graph, self.stream, compute_ns, memory_ns)
        self._finish(n_samples + len(step.prefills))

    def hang(self) -> None:
        """Launch a kernel that never ends; the next wait does not return."""
        kernel = self._kernels[LAYER_KERNELS[4][0]]
        self.cuda.launch_hanging(kernel, Grid(64, 128), self.stream)

    def use_new_kernels(self, names: list[str]) -> None:
        """Register another module and launch each of its kernels once (a first use)."""
        handles = self.cuda.register(names)
        for handle in handles.values():
            self.cuda.launch(handle, Grid(64, 128), self.stream, 20_000)

    def _finish(self, n_sequences: int) -> None:
        cuda = self.cuda
        sample = self._kernels[SAMPLE_KERNEL]
        cuda.launch(sample, Grid(n_sequences, 512), self.stream, self._options.sample_ns)
        cuda.copy(self._host, self._sampled, 8 * n_sequences, DEVICE_TO_HOST, self.stream)
        cuda.synchronize(self.stream)

    def _launch_layers(self, n_tokens: int, compute_ns: int, memory_ns: int) -> None:
        """Launch the kernels of all layers, their times adding up to the larger of the two."""
        launch = self.cuda.launch
        kernels, stream = self._kernels, self.stream
        n_layers, work_ns = self._options.n_layers, self._options.launch_work_ns
        wide, narrow = Grid(max(1, n_tokens // 4), 256, 8), Grid(max(1, n_tokens), 128)
        launch(kernels[EMBEDDING_KERNEL], narrow, stream, 2_000)
        costs = [
            (
                kernels[name],
                wide if share > 0.1 else narrow,
                int(compute_ns * share / n_layers),
                int(memory_ns * share / n_layers),
            )
            for name, share in LAYER_KERNELS
        ]
        for _ in range(n_layers):
            for kernel, grid, kernel_compute_ns, kernel_memory_ns in costs:
                if work_ns:
                    compute(work_ns)
                launch(kernel, grid, stream, kernel_compute_ns, kernel_memory_ns)
        launch(kernels[LOGITS_KERNEL], narrow, stream, 20_000)

    def _graph(self, n_samples: int) -> int:
        """Return the graph for a batch of that many sequences, capturing it at first use."""
        size = next(size for size in GRAPH_SIZES if size >= n_samples)
        graph = self._graphs.get(size)
        if graph is None:
            self.cuda.begin_capture(self.stream)
            self._launch_layers(size, 1_000_000, 0)
            graph = self._graphs[size] = self.cuda.end_capture(self.stream)
        return graph
