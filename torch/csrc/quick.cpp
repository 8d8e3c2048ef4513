// The fast path for most calls: tensors of one type and one shape, each covering its storage. It
// skips type inference, the argument list and the key of cached result types. All other calls take
// the general path. A row's lowering and this file record the same ops (engine/src/quick.rs).

#include "quick.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "site.h"
#include "storage.h"

namespace fuseline {
namespace {

// The general path of an overload. Each kernel below has one, which lives until the process ends.
struct Common {
  c10::BoxedKernel kernel;
  std::optional<c10::OperatorHandle> op;

  template <class... Args>
  c10::IValue operator()(const Args&... args) const {
    torch::jit::Stack stack{c10::IValue(args)...};
    kernel.callBoxed(*op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
    return std::move(stack.back());
  }
};

// The order is that of the engine's numbers.
enum Two : size_t { kAdd, kSub, kMul, kDiv, kEq, kNe, kLt, kLe, kGt, kGe, kMm, kTwo };
enum One : size_t { kNeg, kExp, kLog, kSqrt, kRsqrt, kSin, kCos, kTanh, kSigmoid, kOne };

template <Two op>
Common& common() {
  static Common& one = *new Common;
  return one;
}
template <Two op>
Common& common_in_place() {
  static Common& one = *new Common;
  return one;
}
template <One op>
Common& common_of_one() {
  static Common& one = *new Common;
  return one;
}

Common& common_of_sum() {
  static Common& one = *new Common;
  return one;
}
Common& common_of_where() {
  static Common& one = *new Common;
  return one;
}

constexpr bool compares(Two op) { return op >= kEq && op <= kGe; }

// Types that rows compute in without a conversion.
bool is_plain_float(c10::ScalarType dtype) { return dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double; }

// A number that Python's operators have wrapped in a scalar tensor.
std::optional<double> number_of(const at::Tensor& tensor) {
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number() || !tensor.device().is_cpu()) return std::nullopt;
  switch (tensor.scalar_type()) {
    case c10::ScalarType::Double: return *static_cast<const double*>(tensor.const_data_ptr());
    case c10::ScalarType::Long: return static_cast<double>(*static_cast<const int64_t*>(tensor.const_data_ptr()));
    default: return std::nullopt;
  }
}

// The result's value, or none. Its type is that of the first operand, or bool.
template <Two op>
Value quick(const at::Tensor& a, const at::Tensor& b) {
  if (!is_ours(a)) return {};
  const CallSite site;
  const c10::ScalarType dtype = a.scalar_type();
  Value value;
  if constexpr (op <= kDiv) {
    if (const auto number = number_of(b)) {
      if (!c10::isFloatingType(dtype)) return {};
      const Value x = read_whole(a);
      if (x) check(flt_quick_number(op, x.get(), *number, value.out()));
      return value;
    }
  }
  if (!is_ours(b) || b.scalar_type() != dtype) return {};
  if constexpr (op == kMm) {
    if (!is_plain_float(dtype) || a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(0)) return {};
  } else {
    if (a.sizes() != b.sizes()) return {};
    const bool is_float = c10::isFloatingType(dtype);
    if (!is_float && (op == kDiv || !c10::isIntegralType(dtype, false))) return {};
  }
  const Value x = read_whole(a), y = read_whole(b);
  if (x && y) check(flt_quick(op, x.get(), y.get(), value.out()));
  return value;
}

template <Two op>
at::Tensor made(Value value, const at::Tensor& a, const at::Tensor& b) {
  if constexpr (op == kMm) return make(std::move(value), a.scalar_type(), {a.size(0), b.size(1)});
  return make(std::move(value), compares(op) ? c10::ScalarType::Bool : a.scalar_type(), a.sizes());
}

bool is_one(const at::Scalar& alpha) {
  return alpha.isIntegral(false) ? alpha.toLong() == 1 : alpha.isFloatingPoint() && alpha.toDouble() == 1.0;
}

template <Two op>
at::Tensor scaled(const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  if (is_one(alpha))
    if (Value value = quick<op>(a, b)) return made<op>(std::move(value), a, b);
  return common<op>()(a, b, alpha).toTensor();
}

template <Two op>
at::Tensor plain(const at::Tensor& a, const at::Tensor& b) {
  if (Value value = quick<op>(a, b)) return made<op>(std::move(value), a, b);
  return common<op>()(a, b).toTensor();
}

template <Two op>
at::Tensor& scaled_in_place(at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  Value value = is_one(alpha) ? quick<op>(a, b) : Value();
  if (value) {
    write(a, std::move(value));
  } else {
    common_in_place<op>()(a, b, alpha);
  }
  return a;
}

template <Two op>
at::Tensor& in_place(at::Tensor& a, const at::Tensor& b) {
  if (Value value = quick<op>(a, b)) {
    write(a, std::move(value));
  } else {
    common_in_place<op>()(a, b);
  }
  return a;
}

template <One op>
at::Tensor of_one(const at::Tensor& a) {
  if (is_plain_float(a.scalar_type())) {
    if (const Value x = read_whole(a)) {
      const CallSite site;
      Value value;
      check(flt_quick_one(op, x.get(), value.out()));
      return make(std::move(value), a.scalar_type(), a.sizes());
    }
  }
  return common_of_one<op>()(a).toTensor();
}

at::Tensor sum(const at::Tensor& a, at::OptionalIntArrayRef dim, bool keeps, std::optional<c10::ScalarType> dtype) {
  const c10::ScalarType own = a.scalar_type();
  if (is_plain_float(own) && dtype.value_or(own) == own) {
    const CallSite site;
    const int64_t rank = a.dim();
    const c10::IntArrayRef given = dim.value_or(c10::IntArrayRef());
    // All dimensions if none is given. Tensors without dimensions and errors take the general path.
    std::array<bool, FLT_MAX_RANK> is_summed{};
    c10::SmallVector<int64_t, 6> axes, sizes;
    bool is_right = rank > 0 || given.empty();
    for (int64_t axis : given) {
      axis += axis < 0 ? rank : 0;
      is_right = is_right && 0 <= axis && axis < rank && !std::exchange(is_summed[axis], true);
    }
    for (int64_t axis = 0; axis < rank; ++axis) {
      if (given.empty() || is_summed[axis]) {
        axes.push_back(axis);
        if (keeps) sizes.push_back(1);
      } else {
        sizes.push_back(a.size(axis));
      }
    }
    if (const Value x = is_right ? read_whole(a) : Value()) {
      Value value;
      check(flt_quick_sum(x.get(), axes.data(), axes.size(), keeps, value.out()));
      return make(std::move(value), own, sizes);
    }
  }
  return common_of_sum()(a, dim, keeps, dtype).toTensor();
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  const bool is_alike = is_ours(condition) && is_ours(a) && is_ours(b) && condition.scalar_type() == c10::ScalarType::Bool &&
                        a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.sizes() == condition.sizes();
  if (is_alike) {
    const Value which = read_whole(condition), x = read_whole(a), y = read_whole(b);
    if (which && x && y) {
      const CallSite site;
      Value value;
      check(flt_quick_where(which.get(), x.get(), y.get(), value.out()));
      return make(std::move(value), a.scalar_type(), a.sizes());
    }
  }
  return common_of_where()(condition, a, b).toTensor();
}

struct Entry {
  std::string_view name;
  Common& (*common)();
  void (*implement)(torch::Library&, const char*);
};

#define QUICK(name, place, function) {name, &place, [](torch::Library& library, const char* full) { library.impl(full, &function); }}

const std::array kEntries = {
    Entry QUICK("add.Tensor", common<kAdd>, scaled<kAdd>),
    Entry QUICK("sub.Tensor", common<kSub>, scaled<kSub>),
    Entry QUICK("mul.Tensor", common<kMul>, plain<kMul>),
    Entry QUICK("div.Tensor", common<kDiv>, plain<kDiv>),
    Entry QUICK("eq.Tensor", common<kEq>, plain<kEq>),
    Entry QUICK("ne.Tensor", common<kNe>, plain<kNe>),
    Entry QUICK("lt.Tensor", common<kLt>, plain<kLt>),
    Entry QUICK("le.Tensor", common<kLe>, plain<kLe>),
    Entry QUICK("gt.Tensor", common<kGt>, plain<kGt>),
    Entry QUICK("ge.Tensor", common<kGe>, plain<kGe>),
    Entry QUICK("mm", common<kMm>, plain<kMm>),
    Entry QUICK("add_.Tensor", common_in_place<kAdd>, scaled_in_place<kAdd>),
    Entry QUICK("sub_.Tensor", common_in_place<kSub>, scaled_in_place<kSub>),
    Entry QUICK("mul_.Tensor", common_in_place<kMul>, in_place<kMul>),
    Entry QUICK("div_.Tensor", common_in_place<kDiv>, in_place<kDiv>),
    Entry QUICK("neg", common_of_one<kNeg>, of_one<kNeg>),
    Entry QUICK("exp", common_of_one<kExp>, of_one<kExp>),
    Entry QUICK("log", common_of_one<kLog>, of_one<kLog>),
    Entry QUICK("sqrt", common_of_one<kSqrt>, of_one<kSqrt>),
    Entry QUICK("rsqrt", common_of_one<kRsqrt>, of_one<kRsqrt>),
    Entry QUICK("sin", common_of_one<kSin>, of_one<kSin>),
    Entry QUICK("cos", common_of_one<kCos>, of_one<kCos>),
    Entry QUICK("tanh", common_of_one<kTanh>, of_one<kTanh>),
    Entry QUICK("sigmoid", common_of_one<kSigmoid>, of_one<kSigmoid>),
    Entry QUICK("sum.dim_IntList", common_of_sum, sum),
    Entry QUICK("where.self", common_of_where, where),
};

}  // namespace

bool register_quick(torch::Library& library, const c10::OperatorHandle& op, const c10::BoxedKernel& boxed) {
  const auto& name = op.operator_name();
  if (name.name.rfind("aten::", 0) != 0) return false;
  const std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
  for (const Entry& entry : kEntries) {
    if (entry.name != full) continue;
    entry.common() = Common{boxed, op};
    entry.implement(library, full.c_str());
    return true;
  }
  return false;
}

}  // namespace fuseline
