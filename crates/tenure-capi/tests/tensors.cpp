// Checks tensors in C++. tests/interface.rs runs this program.
#include <cstdio>
#include <cstdlib>

#include "tenure.hpp"

using tenure::Tensor;

#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                         \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

static Tensor own_square(const Tensor &x) {
    Tensor y;
    {
        tenure::GradMode off(false);
        y = x * x;
    }
    tenure::attach("square", {y}, {x}, {x}, [](const tenure::Tensors &saved, const tenure::Tensors &grads) {
        if (saved[0].numel() > 4)
            throw std::runtime_error("more than four");
        return tenure::Tensors{grads[0] * saved[0] * 2};
    });
    return y;
}

int main() {
    const std::vector<float> numbers{1, -2, 3, 4};
    Tensor x = Tensor::from(numbers, {2, 2});
    CHECK((x.sizes() == tenure::Ints{2, 2}) && x.dtype() == tenure::DType::Float32 && x.device().is_cpu());
    CHECK(((x + 1) * 2.0 - x).to_vector<float>() == (std::vector<float>{3, 0, 5, 6}));
    CHECK(tenure::matmul(x, x).to_vector<float>() == (std::vector<float>{-5, -10, 15, 10}));
    CHECK(x.sum({0}, true).size(-1) == 2 && x.sum().dim() == 0);
    auto [values, indices] = x.sort(1, true);
    CHECK(values.to_vector<float>() == (std::vector<float>{1, -2, 4, 3}));
    CHECK(indices.to_vector<int64_t>() == (std::vector<int64_t>{0, 1, 1, 0}));
    CHECK(tenure::cat({x, x.neg()}, 1).chunk(2, 1)[1].equal(-x));
    Tensor integers = Tensor::from<int64_t>({16777217, 2}, {2});
    CHECK((2 * integers).to_vector<int64_t>() == (std::vector<int64_t>{33554434, 4}));
    CHECK((1 - integers).to_vector<int64_t>() == (std::vector<int64_t>{-16777216, -1}));
    CHECK((integers + size_t(1)).dtype() == tenure::DType::Int64 && (1.5 + integers).dtype() == tenure::DType::Float32);
    CHECK((1.0 / x).to_vector<float>() == (std::vector<float>{1, -0.5, 1.0f / 3, 0.25}));
    Tensor truths = Tensor::from<bool>({true, false}, {2});
    CHECK(truths.to_vector<bool>() == (std::vector<bool>{true, false}) && truths.dtype() == tenure::DType::Bool);
    Tensor same = x;
    same.add_(1);
    CHECK(x.to_vector<float>()[0] == 2 && tenure::zeros({2, 3}).numel() == 6);
    Tensor moved = std::move(same);
    CHECK(!same.defined() && moved.defined());

    try {
        x.matmul(tenure::zeros({3, 3}));
        CHECK(false);
    } catch (const tenure::Error &error) {
        CHECK(std::string(error.what()).find("matmul") != std::string::npos && error.status() == TENURE_INVALID);
    }
    try {
        Tensor().sizes();
        CHECK(false);
    } catch (const tenure::Error &) {
    }

    Tensor leaf = Tensor::from(numbers, {4}).requires_grad_();
    CHECK(!leaf.grad().defined());
    own_square(leaf).sum().backward();
    CHECK(leaf.grad().to_vector<float>() == (std::vector<float>{2, -4, 6, 8}));
    try {
        own_square(tenure::zeros({5}).requires_grad_()).sum().backward();
        CHECK(false);
    } catch (const tenure::Error &error) {
        CHECK(std::string(error.what()).find("more than four") != std::string::npos);
    }

    Tensor sum = tenure::zeros({4});
    {
        tenure::Access access({sum}, {leaf});
        const float *from = access.data<const float>(leaf);
        float *to = access.data<float>(sum);
        for (int i = 0; i < 4; i++)
            to[i] = from[i] + 1;
    }
    CHECK(sum.to_vector<float>() == (std::vector<float>{2, -1, 4, 5}));
    puts("ok");
    return 0;
}
