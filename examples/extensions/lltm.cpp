// LLTM, the cell of PyTorch's tutorial on C++ extensions: an LSTM that forgets nothing. lltm.py uses it.
#include <tenure_extension.hpp>

using tenure::Tensor;
using tenure::Tensors;

// The derivatives of the activations.
static Tensor d_sigmoid(const Tensor &z) {
    Tensor s = z.sigmoid();
    return (1.0 - s) * s;
}

static Tensor d_tanh(const Tensor &z) { return 1.0 - z.tanh().square(); }

static Tensor d_elu(const Tensor &z) { return tenure::minimum(z, z * 0).exp(); }

// Returns the new state and cell, and what the backward pass needs.
Tensors forward(const Tensor &input, const Tensor &weights, const Tensor &bias, const Tensor &old_h,
                const Tensor &old_cell) {
    Tensor x = tenure::cat({old_h, input}, 1);
    Tensor gate_weights = tenure::linear(x, weights, bias);
    Tensors gates = gate_weights.chunk(3, 1);
    Tensor input_gate = gates[0].sigmoid();
    Tensor output_gate = gates[1].sigmoid();
    Tensor candidate_cell = gates[2].elu();
    Tensor new_cell = old_cell + candidate_cell * input_gate;
    Tensor new_h = new_cell.tanh() * output_gate;
    return {new_h, new_cell, input_gate, output_gate, candidate_cell, x, gate_weights};
}

// Returns the gradients of forward()'s parameters.
Tensors backward(const Tensor &grad_h, const Tensor &grad_cell, const Tensor &new_cell, const Tensor &input_gate,
                 const Tensor &output_gate, const Tensor &candidate_cell, const Tensor &x, const Tensor &gate_weights,
                 const Tensor &weights) {
    Tensors gates = gate_weights.chunk(3, 1);
    Tensor d_new_cell = d_tanh(new_cell) * output_gate * grad_h + grad_cell;
    Tensor d_gates = tenure::cat({candidate_cell * d_new_cell * d_sigmoid(gates[0]),
                                  new_cell.tanh() * grad_h * d_sigmoid(gates[1]),
                                  input_gate * d_new_cell * d_elu(gates[2])},
                                 1);
    int64_t state = grad_h.size(1);
    Tensor d_x = d_gates.matmul(weights);
    return {d_x.narrow(1, state, d_x.size(1) - state), d_gates.transpose(0, 1).matmul(x), d_gates.sum({0}),
            d_x.narrow(1, 0, state), d_new_cell};
}

// The same cell as one operation with its formula, so that Python needs no class for it.
std::tuple<Tensor, Tensor> cell(const Tensor &input, const Tensor &weights, const Tensor &bias, const Tensor &old_h,
                                const Tensor &old_cell) {
    Tensors results;
    {
        tenure::GradMode off(false);
        results = forward(input, weights, bias, old_h, old_cell);
    }
    Tensors saved(results.begin() + 1, results.end());
    saved.push_back(weights);
    tenure::attach("lltm", {results[0], results[1]}, {input, weights, bias, old_h, old_cell}, saved,
                   [](const Tensors &saved, const Tensors &grads) {
                       auto or_zeros = [&saved](const Tensor &grad) { return grad.defined() ? grad : saved[0] * 0; };
                       return backward(or_zeros(grads[0]), or_zeros(grads[1]), saved[0], saved[1], saved[2], saved[3],
                                       saved[4], saved[5], saved[6]);
                   });
    return {results[0], results[1]};
}

TENURE_EXTENSION(module) {
    module.def("forward", forward, "Returns the new state and cell, and what backward() needs.");
    module.def("backward", backward, "Returns the gradients of forward()'s parameters.");
    module.def("cell", cell, "Returns the new state and cell, with a formula for gradients.");
}
