// LLTM with kernels in CUDA (lltm_kernel.cu). lltm.py uses it.
#include <tenure_cuda.hpp>
#include <tenure_extension.hpp>

namespace cuda = tenure::cuda;
using tenure::Tensor;
using tenure::Tensors;

// The operation `cell`: the new state and cell, from the gates and the old cell.
std::tuple<Tensor, Tensor> forward_on_cpu(const Tensor &gates, const Tensor &old_cell) {
    Tensors gate = gates.chunk(3, 1);
    Tensor new_cell = old_cell + gate[0].sigmoid() * gate[2].elu();
    return {new_cell.tanh() * gate[1].sigmoid(), new_cell};
}

// The gradients of the gates and of the old cell.
std::tuple<Tensor, Tensor> backward_on_cpu(const Tensor &grad_h, const Tensor &grad_cell, const Tensor &gates,
                                           const Tensor &new_cell) {
    Tensors gate = gates.chunk(3, 1);
    Tensor input = gate[0].sigmoid(), output = gate[1].sigmoid(), cell = new_cell.tanh();
    Tensor d_cell = grad_h * output * (1.0 - cell.square()) + grad_cell;
    Tensor d_elu = tenure::minimum(gate[2], gate[2] * 0).exp();
    return {tenure::cat({d_cell * gate[2].elu() * input * (1.0 - input), grad_h * cell * output * (1.0 - output),
                         d_cell * input * d_elu},
                        1),
            d_cell};
}

// Launches a kernel with a thread for each element of the state.
template <typename... A> void launch(std::string name, const Tensor &cell, const A &...arguments) {
    if (cell.dtype() != tenure::DType::Float32 && cell.dtype() != tenure::DType::Float64)
        throw tenure::Error("lltm is for float32 and float64");
    name += cell.dtype() == tenure::DType::Float32 ? "<float>" : "<double>";
    int state = static_cast<int>(cell.size(1)), count = static_cast<int>(cell.numel());
    cuda::kernel(name).launch((count + 255) / 256, 256, 0, arguments..., state, count);
}

std::tuple<Tensor, Tensor> forward_on_cuda(const Tensor &given_gates, const Tensor &given_cell) {
    Tensor gates = given_gates.contiguous(), old_cell = given_cell.contiguous();
    if (gates.dim() != 2 || gates.sizes() != tenure::Ints{old_cell.size(0), 3 * old_cell.size(1)})
        throw tenure::Error("lltm: the gates must have three times the columns of the cell");
    Tensor new_h = old_cell.empty_like(), new_cell = old_cell.empty_like();
    launch("lltm_forward", old_cell, cuda::out(new_h), cuda::out(new_cell), cuda::in(gates), cuda::in(old_cell));
    return {new_h, new_cell};
}

std::tuple<Tensor, Tensor> backward_on_cuda(const Tensor &given_h, const Tensor &given_cell, const Tensor &given_gates,
                                            const Tensor &new_cell) {
    Tensor grad_h = given_h.contiguous(), grad_cell = given_cell.contiguous(), gates = given_gates.contiguous();
    Tensor d_gates = gates.empty_like(), d_old_cell = new_cell.empty_like();
    launch("lltm_backward", new_cell, cuda::out(d_gates), cuda::out(d_old_cell), cuda::in(grad_h), cuda::in(grad_cell),
           cuda::in(gates), cuda::in(new_cell));
    return {d_gates, d_old_cell};
}

// The operation's formula: `saved` has the gates, the old cell, the new state and the new cell.
Tensors formula(const Tensors &saved, const Tensors &grads) {
    const Tensor &gates = saved[0], &new_cell = saved[3];
    Tensor grad_h = grads[0].defined() ? grads[0] : new_cell * 0;
    Tensor grad_cell = grads[1].defined() ? grads[1] : new_cell * 0;
    auto backward = gates.device().is_cuda() ? backward_on_cuda : backward_on_cpu;
    auto [d_gates, d_old_cell] = backward(grad_h, grad_cell, gates, new_cell);
    return {d_gates, d_old_cell};
}

TENURE_EXTENSION(module) {
    module.def_operation("cell", forward_on_cpu, forward_on_cuda, formula,
                         "Returns the new state and cell, from the gates and the old cell.");
    // For programs that are tested without a GPU: a simulated device calls these instead of the kernels.
    for (const char *type : {"<float>", "<double>"}) {
        cuda::kernel(std::string("lltm_forward") + type)
            .on_cpu([](const Tensor &new_h, const Tensor &new_cell, const Tensor &gates, const Tensor &old_cell, int,
                       int) {
                auto [h, cell] = forward_on_cpu(gates, old_cell);
                new_h.copy_(h);
                new_cell.copy_(cell);
            });
        cuda::kernel(std::string("lltm_backward") + type)
            .on_cpu([](const Tensor &d_gates, const Tensor &d_old_cell, const Tensor &grad_h, const Tensor &grad_cell,
                       const Tensor &gates, const Tensor &new_cell, int, int) {
                auto [gate, cell] = backward_on_cpu(grad_h, grad_cell, gates, new_cell);
                d_gates.copy_(gate);
                d_old_cell.copy_(cell);
            });
    }
}
