// Checks of element types and numbers that PyTorch's CPU makes. PyTorch's meta functions omit most
// of them, because they depend on the kernels of a device.
//
// The tables name operators as schemas do, without the trailing underscore of in-place variants. A
// name with an overload applies to that overload only.

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/BinaryOps.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/result_type.h>

#include <array>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "arguments.h"
#include "decompose.h"

namespace fuseline {

std::string_view base_of(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  name.remove_prefix(name.find(':') + 2);
  if (name.size() > 1 && name.back() == '_' && name.front() != '_') name.remove_suffix(1);
  return name;
}

namespace {

using c10::IValue;
using c10::ScalarType;
using Args = c10::ArrayRef<IValue>;

// The words of a text.
std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> list;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) list.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return list;
}

// Values by the name of an operator, or by its name and overload.
template <class Value>
class Table {
 public:
  struct Row {
    std::string_view operators;
    Value value;
  };
  Table(std::initializer_list<Row> rows) {
    for (const Row& row : rows)
      for (const std::string_view name : words(row.operators)) values_.emplace(name, row.value);
  }
  const Value* find(const c10::OperatorHandle& op) const {
    const std::string_view base = base_of(op);
    if (const auto found = values_.find(base); found != values_.end()) return &found->second;
    const std::string whole = std::string(base) + "." + op.operator_name().overload_name;
    const auto found = values_.find(whole);
    return found == values_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<std::string_view, Value> values_;
};

// Element types by letters.
uint64_t types_of(std::string_view letters) {
  uint64_t mask = 0;
  const auto add = [&](std::initializer_list<ScalarType> types) {
    for (const ScalarType type : types) mask |= uint64_t{1} << static_cast<int>(type);
  };
  for (const char letter : letters) {
    switch (letter) {
      case 'b':
        add({at::kBool});
        break;
      case 'u':
        add({at::kByte});
        break;
      case 'i':
        add({at::kChar, at::kShort, at::kInt});
        break;
      case 'l':
        add({at::kLong});
        break;
      case 'h':
        add({at::kHalf, at::kBFloat16});
        break;
      case 'f':
        add({at::kFloat, at::kDouble});
        break;
      case 'c':
        add({at::kComplexFloat, at::kComplexDouble});
        break;
      default:
        TORCH_INTERNAL_ASSERT(false);
    }
  }
  return mask;
}

// The type that the CPU selects its kernel by: that of the first tensor, or the promoted type of
// all tensors and numbers.
enum class TypeSource { First, Promoted };

struct Unsupported {
  TypeSource source;
  uint64_t types;
};

// Element types that the CPU of PyTorch 2.15 has no kernel for. They were found by calls of the
// operators of `op_db` with each combination of two types.
const Table<Unsupported>& unsupported() {
  static const auto& table = *new Table<Unsupported>{
      {"pow.Tensor_Tensor pow.Scalar", {TypeSource::Promoted, types_of("b")}},
      {"floor_divide fmod remainder", {TypeSource::Promoted, types_of("bc")}},
      {"bitwise_left_shift bitwise_right_shift gcd lcm", {TypeSource::Promoted, types_of("bhc")}},
      {"logaddexp", {TypeSource::Promoted, types_of("buil")}},
      {"hypot igamma igammac logaddexp2 mse_loss nextafter smooth_l1_loss",
       {TypeSource::Promoted, types_of("builc")}},
      {"atan2 clamp clamp_max clamp_min copysign ge gt heaviside le lt special_xlog1py xlogy",
       {TypeSource::Promoted, types_of("c")}},
      {"bitwise_and bitwise_or bitwise_xor special_chebyshev_polynomial_t "
       "special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
       "special_chebyshev_polynomial_w special_hermite_polynomial_h "
       "special_hermite_polynomial_he special_laguerre_polynomial_l "
       "special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t "
       "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
       "special_shifted_chebyshev_polynomial_w special_zeta",
       {TypeSource::Promoted, types_of("hc")}},
      {"abs addbmm addmm addmv argmax argmin baddbmm bmm dot linalg_cross mm mv neg "
       "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
       "replication_pad2d replication_pad3d topk trace vdot addcmul kthvalue",
       {TypeSource::First, types_of("b")}},
      {"ceil floor geometric hardtanh index_reduce max_pool2d_with_indices "
       "max_pool3d_with_indices median nanmedian relu round threshold trunc",
       {TypeSource::First, types_of("bc")}},
      {"bincount repeat_interleave.Tensor", {TypeSource::First, types_of("bhfc")}},
      {"_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
       "upsample_bicubic2d upsample_bilinear2d upsample_nearest1d upsample_nearest2d "
       "upsample_nearest3d",
       {TypeSource::First, types_of("bilc")}},
      {"convolution", {TypeSource::First, types_of("b")}},
      {"avg_pool2d", {TypeSource::First, types_of("buic")}},
      {"avg_pool3d", {TypeSource::First, types_of("buihc")}},
      {"lerp linalg_matrix_exp linalg_vector_norm logcumsumexp mean normal renorm silu std "
       "std_mean uniform var var_mean",
       {TypeSource::First, types_of("buil")}},
      {"_adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _log_softmax "
       "_native_batch_norm_legit _prelu_kernel _softmax _softmax_backward_data "
       "adaptive_max_pool2d adaptive_max_pool3d binary_cross_entropy celu elu frac "
       "fractional_max_pool2d gelu glu grid_sampler_2d grid_sampler_3d hardshrink "
       "hardsigmoid hardswish histc huber_loss leaky_relu log_normal log_sigmoid_forward "
       "max_unpool2d max_unpool3d mish native_batch_norm native_group_norm native_layer_norm "
       "nll_loss2d_forward nll_loss_forward rrelu_with_noise softplus softshrink "
       "upsample_linear1d upsample_trilinear3d",
       {TypeSource::First, types_of("builc")}},
      {"_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd "
       "cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_householder_product "
       "linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor_ex "
       "linalg_matrix_sqrth linalg_polar linalg_qr linalg_solve_triangular "
       "triangular_solve",
       {TypeSource::First, types_of("builh")}},
      {"multi_margin_loss multilabel_margin_loss_forward", {TypeSource::First, types_of("builhc")}},
      {"_unique2 amax amin bernoulli cummax cummin deg2rad digamma erf erfc erfinv fractional_max_pool3d "
       "i0 lgamma logit max min polygamma rad2deg sign signbit special_entr special_i0e "
       "special_i1 special_i1e unique_consecutive unique_dim",
       {TypeSource::First, types_of("c")}},
      {"bitwise_not special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 "
       "special_bessel_y1 special_erfcx special_log_ndtr special_modified_bessel_i0 "
       "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
       "special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
       "special_spherical_bessel_j0",
       {TypeSource::First, types_of("hc")}},
  };
  return table;
}

// Operators whose CPU kernels return before they look up the type if a tensor has no elements.
const Table<bool>& skips_empty() {
  static const auto& table = *new Table<bool>{
      {"_adaptive_avg_pool2d _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex "
       "_linalg_svd _log_softmax _softmax addbmm addmm addmv baddbmm bmm linalg_cholesky_ex "
       "linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor_ex median mm mv "
       "nanmedian native_group_norm",
       true},
  };
  return table;
}

const at::Tensor* tensor_of(const IValue& arg) {
  return arg.isTensor() && arg.toTensor().defined() ? &arg.toTensor() : nullptr;
}

bool is_number(const c10::Argument& arg, const IValue& given) {
  const auto optional = arg.type()->cast<c10::OptionalType>();
  const auto& type = optional ? *optional->getElementType() : *arg.type();
  return type.kind() == c10::TypeKind::NumberType && given.isScalar();
}

// An argument by its name in the schema. Null if there is none, or it is not given.
const IValue* named(const c10::OperatorHandle& op, Args args, std::string_view name) {
  const auto& schema = op.schema().arguments();
  for (size_t at = 0; at < args.size(); ++at)
    if (schema[at].name() == name) return args[at].isNone() ? nullptr : &args[at];
  return nullptr;
}

ScalarType promoted(const c10::OperatorHandle& op, Args args) {
  at::native::ResultTypeState state = {};
  for (size_t at = 0; at < args.size(); ++at) {
    if (const at::Tensor* tensor = tensor_of(args[at]))
      state = at::native::update_result_type_state(*tensor, state);
    if (is_number(op.schema().arguments()[at], args[at]))
      state = at::native::update_result_type_state(args[at].toScalar(), state);
  }
  return at::native::result_type(state);
}

void check_kernel(const c10::OperatorHandle& op, Args args) {
  const Unsupported* found = unsupported().find(op);
  if (found == nullptr) return;
  const at::Tensor* first = nullptr;
  bool is_empty = false;
  for (const IValue& arg : args) {
    const at::Tensor* tensor = tensor_of(arg);
    if (tensor == nullptr) continue;
    if (first == nullptr) first = tensor;
    is_empty |= tensor->numel() == 0;
  }
  if (first == nullptr || (is_empty && skips_empty().find(op) != nullptr)) return;
  ScalarType type =
      found->source == TypeSource::Promoted ? promoted(op, args) : first->scalar_type();
  if (const IValue* dtype = named(op, args, "dtype"); dtype != nullptr && dtype->isInt())
    type = static_cast<ScalarType>(dtype->toInt());
  TORCH_CHECK_NOT_IMPLEMENTED((found->types >> static_cast<int>(type) & 1) == 0, '"', base_of(op),
                              "\" not implemented for '", type, "'");
}

// Operators that take tensors of one element type, and the names of these tensors.
const Table<std::string_view>& same_dtype_tensors() {
  static const auto& table = *new Table<std::string_view>{
      {"mm bmm", "self mat2"},
      {"addmm", "self mat1 mat2"},
      {"baddbmm addbmm", "self batch1 batch2"},
      {"addmv", "self mat vec"},
      {"dot", "self tensor"},
      {"vdot linalg_cross", "self other"},
      {"convolution convolution_overrideable", "input weight bias"},
      {"masked_scatter put index_add index_copy index_reduce", "self source"},
      {"_index_put_impl _index_put_impl_", "self values"},
      {"scatter scatter_add scatter_reduce", "self src"},
      {"lerp", "self end weight"},
      {"grid_sampler_2d grid_sampler_3d", "input grid"},
      {"nll_loss_forward nll_loss2d_forward", "self weight"},
      {"binary_cross_entropy", "self target weight"},
      {"_softmax_backward_data _log_softmax_backward_data", "grad_output output"},
  };
  return table;
}

void check_same_dtype(const c10::OperatorHandle& op, Args args) {
  const std::string_view* found = same_dtype_tensors().find(op);
  if (found == nullptr) return;
  const auto& schema = op.schema().arguments();
  const std::vector<std::string_view> names = words(*found);
  const at::Tensor* first = nullptr;
  std::string_view first_name;
  for (size_t at = 0; at < args.size(); ++at) {
    const std::string_view name = schema[at].name();
    const at::Tensor* tensor = tensor_of(args[at]);
    if (tensor == nullptr || std::find(names.begin(), names.end(), name) == names.end()) continue;
    if (first == nullptr) first = tensor, first_name = name;
    TORCH_CHECK(first->scalar_type() == tensor->scalar_type(), "expected ", first_name, " and ",
                name, " to have the same dtype, but got: ", first->scalar_type(),
                " != ", tensor->scalar_type(), " (in ", op.operator_name(), ")");
  }
}

// Parameters of a normalization have the input's type. For short floats, `float` is also accepted.
void check_norm(const c10::OperatorHandle& op, Args args) {
  const auto input = args[0].toTensor().scalar_type();
  const bool is_short = input == at::kHalf || input == at::kBFloat16;
  std::optional<ScalarType> first;
  for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
    const IValue* arg = named(op, args, name);
    const at::Tensor* tensor = arg == nullptr ? nullptr : tensor_of(*arg);
    if (tensor == nullptr) continue;
    const ScalarType type = tensor->scalar_type();
    TORCH_CHECK(type == input || (is_short && type == at::kFloat),
                "mixed dtype (CPU): expect parameter to have scalar type of Float, and ", name,
                " has ", type, " beside an input of ", input);
    TORCH_CHECK(type == first.value_or(type),
                "mixed dtype (CPU): all the parameters are expected to have scalar type of Float");
    first = type;
  }
}

void check_rsub(const c10::OperatorHandle&, Args args) {
  const at::Tensor& self = args[0].toTensor();
  ScalarType type;
  if (const at::Tensor* other = tensor_of(args[1])) {
    at::native::sub_check(self, *other);
    type = at::result_type(self, *other);
  } else {
    at::native::sub_check(self, args[1].toScalar());
    type = at::result_type(self, args[1].toScalar());
  }
  at::native::alpha_check(type, args[2].toScalar());
}

// With both bounds given, the result of a bool tensor is bool, which `clamp` has no kernel for.
void check_clamp(const c10::OperatorHandle& op, Args args) {
  const bool has_both = args.size() < 3 || (!args[1].isNone() && !args[2].isNone());
  const bool is_number = args[1].isScalar() || (args.size() > 2 && args[2].isScalar());
  TORCH_CHECK_NOT_IMPLEMENTED(
      promoted(op, args) != at::kBool || !(is_number || (has_both && base_of(op) == "clamp")), '"',
      base_of(op), "\" not implemented for 'Bool'");
}

void check_multinomial(const c10::OperatorHandle&, Args args) {
  const at::Tensor& self = args[0].toTensor();
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(args[1].toInt() > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(args[2].toBool() || args[1].toInt() <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(self.size(-1) <= int64_t{1} << 24, "number of categories cannot exceed 2^24");
}

void check_gelu(const c10::OperatorHandle& op, Args args) {
  const IValue* kind = named(op, args, "approximate");
  TORCH_CHECK(kind == nullptr || kind->toStringRef() == "none" || kind->toStringRef() == "tanh",
              "approximate argument must be either none or tanh.");
}

void check_convolution(const c10::OperatorHandle& op, Args args) {
  for (const char* name : {"padding", "output_padding"}) {
    const IValue* sizes = named(op, args, name);
    if (sizes == nullptr) continue;
    for (const int64_t size : sizes->toIntVector())
      TORCH_CHECK(size >= 0, "negative ", name, " is not supported");
  }
}

void check_dim(const c10::OperatorHandle& op, Args args) {
  const int64_t rank = args[0].toTensor().dim();
  if (const IValue* dim = named(op, args, "dim")) c10::maybe_wrap_dim(dim->toInt(), rank);
}

void check_normal(const c10::OperatorHandle& op, Args args) {
  const IValue* std = named(op, args, "std");
  const at::Tensor* tensor = std == nullptr ? nullptr : tensor_of(*std);
  TORCH_CHECK(tensor == nullptr || !tensor->is_complex(),
              "normal expects standard deviation to be non-complex");
}

void check_cdist(const c10::OperatorHandle&, Args args) {
  for (size_t at : {0, 1})
    TORCH_CHECK(at::isFloatingType(args[at].toTensor().scalar_type()),
                "cdist only supports floating-point dtypes, X", at + 1,
                " got: ", args[at].toTensor().scalar_type());
  const ScalarType other = args[1].toTensor().scalar_type();
  TORCH_CHECK(args[0].toTensor().scalar_type() == other, "expected scalar type ",
              args[0].toTensor().scalar_type(), " but found ", other);
  TORCH_CHECK(args[2].toDouble() >= 0, "cdist only supports non-negative p values");
  const ScalarType type = args[0].toTensor().scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(type == at::kFloat || type == at::kDouble,
                              "\"cdist\" not implemented for '", type, "'");
}

// The type has to hold `from` and `to - 1`.
void check_random(const c10::OperatorHandle& op, Args args) {
  const ScalarType type = args[0].toTensor().scalar_type();
  const auto check = [&](int64_t number, const char* name) {
    const bool fits = type == at::kBool ? number == 0 || number == 1
                      : c10::isIntegralType(type, false)
                          ? AT_DISPATCH_INTEGRAL_TYPES(
                                type, "random_",
                                [&] {
                                  using limits = std::numeric_limits<scalar_t>;
                                  return number >= static_cast<int64_t>(limits::lowest()) &&
                                         number <= static_cast<int64_t>(limits::max());
                                })
                          : type != at::kHalf || std::abs(static_cast<double>(number)) <= 65504;
    TORCH_CHECK(fits, name, " is out of bounds for ", type);
  };
  if (const IValue* from = named(op, args, "from")) check(from->toInt(), "from");
  if (const IValue* to = named(op, args, "to")) check(to->toInt() - 1, "to - 1");
}

// Probabilities are floats. They are the first tensor, unless there is another argument for them.
void check_bernoulli(const c10::OperatorHandle& op, Args args) {
  const IValue* given = named(op, args, "p");
  if (given != nullptr && !given->isTensor()) return;
  const ScalarType type = (given != nullptr ? *given : args[0]).toTensor().scalar_type();
  const bool is_in_place = is_written(op.schema().arguments()[0]);
  if (given == nullptr && is_in_place) return;
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(type), "\"bernoulli\" not implemented for '", type, "'");
}

// Running sums and products. They have no kernel for bool, and in place their type is the tensor's.
void check_running(const c10::OperatorHandle& op, Args args) {
  const ScalarType own = args[0].toTensor().scalar_type();
  const IValue* dtype = named(op, args, "dtype");
  const ScalarType type = dtype != nullptr ? static_cast<ScalarType>(dtype->toInt()) : own;
  const bool is_in_place = is_written(op.schema().arguments()[0]);
  TORCH_CHECK(!is_in_place || type == own, "Bad in-place call: input tensor dtype ", own,
              " and output tensor dtype ", type,
              " should match");
  TORCH_CHECK_NOT_IMPLEMENTED(type != at::kBool || (dtype == nullptr && !is_in_place), '"', base_of(op),
                              "\" not implemented for 'Bool'");
}

using Check = void (*)(const c10::OperatorHandle&, Args);

const Table<Check>& checks() {
  static const auto& table = *new Table<Check>{
      {"native_batch_norm native_layer_norm native_group_norm", check_norm},
      {"rsub", check_rsub},
      {"clamp clamp_min clamp_max", check_clamp},
      {"multinomial", check_multinomial},
      {"gelu", check_gelu},
      {"convolution convolution_overrideable", check_convolution},
      {"logcumsumexp _logcumsumexp", check_dim},
      {"normal", check_normal},
      {"_cdist_forward", check_cdist},
      {"random", check_random},
      {"bernoulli", check_bernoulli},
      {"cumsum cumprod", check_running},
  };
  return table;
}

// Operators that refuse an `out=` tensor of another type than the result's.
const Table<bool>& exact_out() {
  static const auto& table = *new Table<bool>{
      {"_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _log_softmax "
       "_native_batch_norm_legit _softmax abs addbmm addmm addmv amax amin aminmax argmax argmin "
       "avg_pool2d avg_pool3d baddbmm bitwise_not bmm bucketize ceil complex conj_physical cummax "
       "cummin cumprod cumsum dot floor frac "
       "frexp gather gelu hardshrink heaviside index_add index_copy index_reduce index_select "
       "isin isneginf isposinf kthvalue linalg_cholesky_ex linalg_cross linalg_inv_ex linalg_lu "
       "linalg_lu_factor_ex linalg_lu_solve linalg_polar linalg_qr linalg_solve_triangular "
       "linalg_vector_norm log_sigmoid_forward lu_unpack masked_select max.dim_max min.dim_min mm "
       "mode "
       "multinomial mv nan_to_num narrow_copy native_batch_norm neg nonzero norm ormqr polar "
       "prod renorm round scatter scatter_add scatter_reduce searchsorted sgn sign signbit softplus "
       "softshrink sort sum take topk triangular_solve tril triu trunc vdot where",
       true},
  };
  return table;
}

// How the CPU converts a number to the element type.
//
// Exact: the type has to hold the number. Wide: as Exact, but for short floats `float` has to hold
// it. Short: as Exact for integers and short floats; other types are not checked. Lower, Upper: a
// bound beyond all values of the type has no effect.
enum class Limit { Exact, Wide, Short, Lower, Upper };

struct ScalarRule {
  Limit limit;
  std::string_view names;
};

const Table<ScalarRule>& scalar_rules() {
  static const auto& table = *new Table<ScalarRule>{
      {"masked_fill index_fill scatter constant_pad_nd", {Limit::Exact, "value"}},
      // The CPU fills a tensor of one element without a check.
      {"fill addcmul addcdiv", {Limit::Wide, "value"}},
      {"fill_diagonal", {Limit::Exact, "fill_value"}},
      {"threshold", {Limit::Wide, "threshold value"}},
      {"addmm baddbmm addbmm", {Limit::Wide, "alpha beta"}},
      {"addmv", {Limit::Exact, "alpha beta"}},
      {"add sub rsub index_add", {Limit::Exact, "alpha"}},
      {"hardshrink", {Limit::Exact, "lambd"}},
      {"pow.Tensor_Scalar", {Limit::Short, "exponent"}},
      {"clamp clamp_min hardtanh", {Limit::Lower, "min min_val"}},
      {"clamp_max", {Limit::Upper, "max"}},
  };
  return table;
}

// The number in the type. Throws the CPU's error if the type does not hold it.
template <class T>
c10::Scalar converted(const c10::Scalar& number, Limit limit) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    if (limit >= Limit::Lower && !number.isComplex()) {
      using limits = std::numeric_limits<T>;
      const auto least = static_cast<int64_t>(limits::lowest()),
                 most = static_cast<int64_t>(limits::max());
      const int64_t whole = number.to<int64_t>();
      if (limit == Limit::Lower && whole < least) return c10::Scalar(least);
      if (limit == Limit::Upper && whole > most) return c10::Scalar(most);
      TORCH_CHECK(whole >= least && whole <= most, "value cannot be converted to type ",
                  c10::CppTypeToScalarType<T>::value, " without overflow");
      return c10::Scalar(whole);
    }
  }
  (void)number.to<T>();
  return number;
}

}  // namespace

void check_types(const c10::OperatorHandle& op, Args args) {
  check_same_dtype(op, args);
  // A decomposition may call operators with types that the CPU has no kernel for.
  if (!is_decomposing()) {
    if (const Check* check = checks().find(op)) (*check)(op, args);
    check_kernel(op, args);
  }
  // The meta kernels have an error of another kind.
  const std::string_view base = base_of(op);
  if ((base == "argmax" || base == "argmin") && args.size() > 1 && args[1].isNone())
    TORCH_CHECK_INDEX(args[0].toTensor().numel() > 0, base,
                      "(): Expected reduction dim to be specified for input.numel() == 0.");
}

bool takes_type_of_out(const c10::OperatorHandle& op) {
  const std::string_view base = base_of(op);
  return base == "cumsum" || base == "cumprod" || base == "sum" || base == "prod";
}

bool converts_to_out(const c10::OperatorHandle& op) { return base_of(op) == "bernoulli"; }

void check_out(const c10::OperatorHandle& op, ScalarType given, ScalarType result) {
  const std::string_view base = base_of(op);
  TORCH_CHECK_NOT_IMPLEMENTED(base != "bernoulli" || !at::isComplexType(given),
                              "\"bernoulli\" not implemented for '", given, "'");
  TORCH_CHECK_TYPE(base != "cat" || c10::canCast(result, given),
                   "torch.cat(): input types can't be cast to the desired output type ", given);
  TORCH_CHECK((base != "all" && base != "any") || given == at::kBool || given == at::kByte, base,
              " only supports bool tensor for result, got: ", given);
  TORCH_CHECK(given == result || exact_out().find(op) == nullptr,
              "Expected out tensor to have dtype ", result, ", but got ", given, " instead (in ",
              op.operator_name(), ")");
}

ScalarConversion::ScalarConversion(const c10::OperatorHandle& op) {
  const ScalarRule* found = scalar_rules().find(op);
  if (found == nullptr) return;
  const std::vector<std::string_view> names = words(found->names);
  const auto& schema = op.schema().arguments();
  limits_.assign(schema.size(), 0);
  for (size_t at = 0; at < schema.size(); ++at) {
    const std::string_view name = schema[at].name();
    const bool is_upper = found->limit == Limit::Lower && (name == "max" || name == "max_val");
    if (std::find(names.begin(), names.end(), name) == names.end() && !is_upper) continue;
    limits_[at] = static_cast<char>(1 + static_cast<int>(is_upper ? Limit::Upper : found->limit));
  }
}

c10::Scalar ScalarConversion::convert(size_t at, const c10::Scalar& number, ScalarType type) const {
  const auto limit = static_cast<Limit>(limits_[at] - 1);
  // The usual number, 1, needs no conversion.
  if (number.isIntegral(true) && (number.toLong() == 0 || number.toLong() == 1)) return number;
  if (limit == Limit::Wide && (types_of("h") >> static_cast<int>(type) & 1) != 0) type = at::kFloat;
  if (limit == Limit::Short && (types_of("fc") >> static_cast<int>(type) & 1) != 0) return number;
  c10::Scalar result = number;
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kBool, at::kHalf, at::kBFloat16, type, "number",
                                         [&] { result = converted<scalar_t>(number, limit); });
  return result;
}

}  // namespace fuseline
