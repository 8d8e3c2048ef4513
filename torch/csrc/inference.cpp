// Infers the types of the results of operators that are not structured (see structured.cpp).
//
// Each rule accepts calls that are certainly valid, with the element types that programs use. It
// leaves all other calls to PyTorch's meta functions, which raise the errors.

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <string_view>
#include <unordered_map>

#include "kernel.h"

namespace fuseline {
namespace {

using c10::IValue;
using Args = c10::ArrayRef<IValue>;
using Dims = c10::SmallVector<int64_t, 5>;

void add(Outs& outs, c10::ScalarType dtype, c10::IntArrayRef dims) {
  Out out;
  out.dtype = dtype;
  out.dims = dims;
  outs.push_back(std::move(out));
}

void add_like(Outs& outs, const at::Tensor& tensor) {
  add(outs, tensor.scalar_type(), tensor.sizes());
}

// Adds a result like the tensor, or one that is not computed.
void add_if(Outs& outs, bool is_wanted, const at::Tensor& tensor) {
  is_wanted ? add_like(outs, tensor) : outs.push_back(Out());
}

bool is_tensor(const IValue& arg) { return arg.isTensor() && arg.toTensor().defined(); }

bool is_float(const at::Tensor& tensor) { return at::isFloatingType(tensor.scalar_type()); }

// Whether the statistics of a normalization have the type of its input.
bool is_wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble;
}

// Whether the argument is absent, or a vector of this type and size.
bool is_vector(const IValue& arg, c10::ScalarType dtype, int64_t size) {
  return !is_tensor(arg) || (arg.toTensor().scalar_type() == dtype &&
                             arg.toTensor().sizes() == c10::IntArrayRef(size));
}

bool like_self(Args args, Outs& outs) {
  if (!is_tensor(args[0])) return false;
  add_like(outs, args[0].toTensor());
  return true;
}

bool like_float(Args args, Outs& outs) {
  return is_tensor(args[0]) && is_float(args[0].toTensor()) && like_self(args, outs);
}

bool like_number(Args args, Outs& outs) {
  return is_tensor(args[0]) && !args[0].toTensor().is_complex() &&
         args[0].toTensor().scalar_type() != at::kBool && like_self(args, outs);
}

bool like_second(Args args, Outs& outs) {
  return is_tensor(args[1]) && is_float(args[1].toTensor()) &&
         args[0].toTensor().scalar_type() == args[1].toTensor().scalar_type() &&
         like_self(args.slice(1), outs);
}

// A predicate of operands of one size, or of scalars.
bool predicate(Args args, Outs& outs) {
  Dims dims;
  for (const IValue& arg : args) {
    if (!is_tensor(arg)) return false;
    const at::IntArrayRef other = arg.toTensor().sizes();
    if (!dims.empty() && !other.empty() && c10::IntArrayRef(dims) != other) return false;
    if (dims.empty()) dims = other;
  }
  add(outs, at::kBool, dims);
  return true;
}

bool fill(Args args, Outs& outs) {
  return !args[1].toScalar().isComplex() && like_float(args, outs);
}

// Random numbers, if the parameters of the distribution are valid.
bool uniform(Args args, Outs& outs) {
  return args[1].toDouble() <= args[2].toDouble() && std::abs(args[2].toDouble()) < 1e4 &&
         like_float(args, outs);
}
bool normal(Args args, Outs& outs) { return args[2].toDouble() >= 0 && like_float(args, outs); }
bool bernoulli_p(Args args, Outs& outs) {
  return args[1].toDouble() >= 0 && args[1].toDouble() <= 1 && like_float(args, outs);
}
bool exponential(Args args, Outs& outs) { return args[1].toDouble() > 0 && like_float(args, outs); }

bool where(Args args, Outs& outs) {
  if (!is_tensor(args[0]) || args[0].toTensor().scalar_type() != at::kBool || !is_tensor(args[1]) ||
      !is_tensor(args[2]))
    return false;
  const at::Tensor &condition = args[0].toTensor(), &self = args[1].toTensor(),
                   &other = args[2].toTensor();
  if (!at::are_expandable(self.sizes(), other.sizes())) return false;
  const std::vector<int64_t> dims = at::infer_size(self.sizes(), other.sizes());
  if (!at::are_expandable(condition.sizes(), dims)) return false;
  add(outs, at::result_type(self, other), at::infer_size(condition.sizes(), dims));
  return true;
}

bool masked_fill(Args args, Outs& outs) {
  if (!is_tensor(args[0]) || !is_tensor(args[1]) || args[1].toTensor().scalar_type() != at::kBool)
    return false;
  const at::Tensor &self = args[0].toTensor(), &mask = args[1].toTensor();
  const bool is_plain =
      args[2].isTensor()
          ? args[2].toTensor().dim() == 0 && args[2].toTensor().scalar_type() == self.scalar_type()
          : is_float(self) && args[2].isScalar() && !args[2].toScalar().isComplex();
  if (!is_plain || !at::are_expandable(self.sizes(), mask.sizes())) return false;
  add(outs, self.scalar_type(), at::infer_size(self.sizes(), mask.sizes()));
  return true;
}

// The maximum or minimum of all elements.
bool reduce_all(Args args, Outs& outs) {
  if (!is_tensor(args[0]) || args[0].toTensor().numel() == 0 || args[0].toTensor().is_complex())
    return false;
  add(outs, args[0].toTensor().scalar_type(), {});
  return true;
}

// Variance and deviation, with or without the mean: (self, dim, correction, keepdim).
bool moments(Args args, Outs& outs, int results) {
  if (!like_float(args, outs)) return false;
  outs.clear();
  const at::Tensor& self = args[0].toTensor();
  std::vector<bool> is_reduced(self.dim(), true);
  if (!args[1].isNone() && !args[1].toIntVector().empty()) {
    is_reduced.assign(self.dim(), false);
    for (const int64_t dim : args[1].toIntVector()) {
      if (dim < -self.dim() || dim >= self.dim()) return false;
      const auto place = static_cast<size_t>(dim < 0 ? dim + self.dim() : dim);
      if (is_reduced[place]) return false;
      is_reduced[place] = true;
    }
  }
  Dims dims;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!is_reduced[dim]) dims.push_back(self.size(dim));
    if (is_reduced[dim] && args[3].toBool()) dims.push_back(1);
  }
  for (int result = 0; result < results; ++result) add(outs, self.scalar_type(), dims);
  return true;
}
bool one_moment(Args args, Outs& outs) { return moments(args, outs, 1); }
bool two_moments(Args args, Outs& outs) { return moments(args, outs, 2); }

bool index_select(Args args, Outs& outs) {
  if (!is_tensor(args[0]) || !is_tensor(args[2])) return false;
  const at::Tensor &self = args[0].toTensor(), &index = args[2].toTensor();
  const int64_t dim = args[1].toInt();
  if (index.dim() != 1 || (index.scalar_type() != at::kLong && index.scalar_type() != at::kInt) ||
      dim < -self.dim() || dim >= self.dim())
    return false;
  Dims dims(self.sizes());
  dims[dim < 0 ? dim + self.dim() : dim] = index.size(0);
  add(outs, self.scalar_type(), dims);
  return true;
}

// (self, dim, index, source, ...) with no elements. PyTorch's C++ function rejects that, but only
// on the device `meta`.
bool index_add_nothing(Args args, Outs& outs) {
  if (!is_tensor(args[0]) || !is_tensor(args[2]) || !is_tensor(args[3])) return false;
  const at::Tensor &self = args[0].toTensor(), &index = args[2].toTensor(),
                   &source = args[3].toTensor();
  const int64_t dim = args[1].toInt(), rank = self.dim();
  if (self.numel() != 0 && source.numel() != 0) return false;
  if (rank == 0 || rank != source.dim() || dim < -rank || dim >= rank || index.dim() != 1 ||
      index.size(0) != source.size(dim) ||
      (index.scalar_type() != at::kLong && index.scalar_type() != at::kInt) ||
      self.scalar_type() != source.scalar_type())
    return false;
  for (int64_t other = 0; other < rank; ++other)
    if (other != (dim + rank) % rank && self.size(other) != source.size(other)) return false;
  return like_self(args, outs);
}

bool embedding_backward(Args args, Outs& outs) {
  if (!like_float(args, outs) || args[0].toTensor().dim() == 0) return false;
  outs.clear();
  add(outs, args[0].toTensor().scalar_type(), {args[2].toInt(), args[0].toTensor().size(-1)});
  return true;
}

// The spatial sizes of a convolution's output. Empty if an argument is not valid.
Dims windows(const at::Tensor& input, const at::Tensor& weight, const IValue& strides,
             const IValue& paddings, const IValue& dilations) {
  const std::vector<int64_t> stride = strides.toIntVector(), padding = paddings.toIntVector(),
                             dilation = dilations.toIntVector();
  const auto rank = static_cast<size_t>(input.dim()) - 2;
  const auto at = [](const std::vector<int64_t>& numbers, size_t dim) {
    return numbers[numbers.size() == 1 ? 0 : dim];
  };
  Dims dims;
  for (const auto* numbers : {&stride, &padding, &dilation})
    if (numbers->size() != 1 && numbers->size() != rank) return dims;
  for (size_t dim = 0; dim < rank; ++dim) {
    if (at(stride, dim) < 1 || at(padding, dim) < 0 || at(dilation, dim) < 1 ||
        weight.size(dim + 2) < 1)
      return {};
    const int64_t room = input.size(dim + 2) + 2 * at(padding, dim) -
                         at(dilation, dim) * (weight.size(dim + 2) - 1) - 1;
    if (room < 0) return {};
    dims.push_back(room / at(stride, dim) + 1);
  }
  return dims;
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
bool convolution(Args args, Outs& outs) {
  if (!is_tensor(args[0]) || !is_tensor(args[1]) || args[6].toBool()) return false;
  const at::Tensor &input = args[0].toTensor(), &weight = args[1].toTensor();
  const int64_t groups = args[8].toInt();
  if (input.dim() < 3 || input.dim() != weight.dim() || !is_float(input) ||
      input.scalar_type() != weight.scalar_type() || input.numel() == 0 || groups < 1 ||
      weight.size(0) % groups != 0 || weight.size(0) == 0 ||
      input.size(1) != weight.size(1) * groups ||
      !is_vector(args[2], weight.scalar_type(), weight.size(0)))
    return false;
  const Dims places = windows(input, weight, args[3], args[4], args[5]);
  if (places.empty()) return false;
  Dims dims{input.size(0), weight.size(0)};
  dims.append(places.begin(), places.end());
  add(outs, input.scalar_type(), dims);
  return true;
}

// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask)
bool convolution_backward(Args args, Outs& outs) {
  const at::Tensor &grad = args[0].toTensor(), &input = args[1].toTensor(),
                   &weight = args[2].toTensor();
  if (args[7].toBool() || !is_float(grad) || grad.scalar_type() != input.scalar_type() ||
      input.scalar_type() != weight.scalar_type())
    return false;
  const c10::List<bool> wanted = args[10].toBoolList();
  add_if(outs, wanted[0], input);
  add_if(outs, wanted[1], weight);
  if (wanted[2]) {
    add(outs, weight.scalar_type(), weight.size(0));
  } else {
    outs.push_back(Out());
  }
  return true;
}

// The number of normalized dimensions. 0 if the weight or the bias does not have their sizes.
size_t normalized(const at::Tensor& input, const IValue& shape, const IValue& weight,
                  const IValue& bias) {
  const std::vector<int64_t> dims = shape.toIntVector();
  if (!is_wide(input) || dims.empty() || dims.size() > static_cast<size_t>(input.dim()) ||
      input.sizes().slice(input.dim() - dims.size()) != c10::IntArrayRef(dims))
    return 0;
  for (const IValue* arg : {&weight, &bias})
    if (is_tensor(*arg) && (arg->toTensor().scalar_type() != input.scalar_type() ||
                            arg->toTensor().sizes() != c10::IntArrayRef(dims)))
      return 0;
  return dims.size();
}

// (input, normalized_shape, weight, bias, eps)
bool layer_norm(Args args, Outs& outs) {
  const at::Tensor& input = args[0].toTensor();
  const size_t count = normalized(input, args[1], args[2], args[3]);
  if (count == 0) return false;
  Dims dims(input.sizes());
  std::fill(dims.end() - static_cast<std::ptrdiff_t>(count), dims.end(), 1);
  add_like(outs, input);
  for (int statistic = 0; statistic < 2; ++statistic) add(outs, input.scalar_type(), dims);
  return true;
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask)
bool layer_norm_backward(Args args, Outs& outs) {
  const at::Tensor& input = args[1].toTensor();
  if (normalized(input, args[2], args[5], args[6]) == 0 ||
      args[0].toTensor().scalar_type() != input.scalar_type())
    return false;
  const c10::List<bool> wanted = args[7].toBoolList();
  if ((wanted[1] && !is_tensor(args[5])) || (wanted[2] && !is_tensor(args[6]))) return false;
  add_if(outs, wanted[0], input);
  add_if(outs, wanted[1], args[5].toTensor());
  add_if(outs, wanted[2], args[6].toTensor());
  return true;
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps)
bool batch_norm(Args args, Outs& outs) {
  const at::Tensor& input = args[0].toTensor();
  if (!is_wide(input) || input.dim() < 2 || !args[5].toBool() || input.numel() == 0) return false;
  for (size_t at = 1; at < 5; ++at)
    if (!is_vector(args[at], input.scalar_type(), input.size(1))) return false;
  add_like(outs, input);
  for (int statistic = 0; statistic < 2; ++statistic) add(outs, input.scalar_type(), input.size(1));
  return true;
}

// (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
// output_mask)
bool batch_norm_backward(Args args, Outs& outs) {
  const at::Tensor& input = args[1].toTensor();
  if (!is_wide(input) || input.dim() < 2 || !args[7].toBool() ||
      args[0].toTensor().scalar_type() != input.scalar_type())
    return false;
  for (size_t at = 2; at < 7; ++at)
    if (!is_vector(args[at], input.scalar_type(), input.size(1))) return false;
  const c10::List<bool> wanted = args[9].toBoolList();
  add_if(outs, wanted[0], input);
  for (size_t at = 1; at < 3; ++at) {
    if (wanted[at]) {
      add(outs, input.scalar_type(), input.size(1));
    } else {
      outs.push_back(Out());
    }
  }
  return true;
}

// (self, output_size), pooled over the last two dimensions.
bool adaptive_pool(Args args, Outs& outs) {
  const at::Tensor& self = args[0].toTensor();
  const std::vector<int64_t> sizes = args[1].toIntVector();
  if (!is_float(self) || self.dim() != 4 || self.numel() == 0 || sizes.size() != 2 ||
      sizes[0] < 1 || sizes[1] < 1)
    return false;
  add(outs, self.scalar_type(), {self.size(0), self.size(1), sizes[0], sizes[1]});
  return true;
}

// (grad_output, self)
bool adaptive_pool_backward(Args args, Outs& outs) {
  return args[1].toTensor().dim() == 4 && like_second(args, outs);
}

// (grad_output, self, target, reduction)
bool mse_backward(Args args, Outs& outs) {
  return is_tensor(args[2]) && args[1].toTensor().sizes() == args[2].toTensor().sizes() &&
         args[1].toTensor().scalar_type() == args[2].toTensor().scalar_type() &&
         like_second(args, outs);
}

}  // namespace

InferenceRule inference_rule(const std::string& operation) {
  static const auto* table = new std::unordered_map<std::string_view, InferenceRule>{
      {"aten::_adaptive_avg_pool2d", adaptive_pool},
      {"aten::_adaptive_avg_pool2d_backward", adaptive_pool_backward},
      {"aten::abs", like_number},
      {"aten::bernoulli", like_float},
      {"aten::bernoulli.p", bernoulli_p},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::embedding_dense_backward", embedding_backward},
      {"aten::exponential", exponential},
      {"aten::fill.Scalar", fill},
      {"aten::hardtanh", like_float},
      {"aten::index_add", index_add_nothing},
      {"aten::index_reduce", index_add_nothing},
      {"aten::index_select", index_select},
      {"aten::isnan", predicate},
      {"aten::logical_and", predicate},
      {"aten::logical_not", predicate},
      {"aten::logical_or", predicate},
      {"aten::logical_xor", predicate},
      {"aten::masked_fill.Scalar", masked_fill},
      {"aten::masked_fill.Tensor", masked_fill},
      {"aten::max", reduce_all},
      {"aten::min", reduce_all},
      {"aten::mse_loss_backward", mse_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::normal_functional", normal},
      {"aten::relu", like_number},
      {"aten::std.correction", one_moment},
      {"aten::std_mean.correction", two_moments},
      {"aten::uniform", uniform},
      {"aten::var.correction", one_moment},
      {"aten::var_mean.correction", two_moments},
      {"aten::where.self", where},
      {"aten::zero", like_self},
  };
  const auto found = table->find(operation);
  return found == table->end() ? nullptr : found->second;
}

}  // namespace fuseline
