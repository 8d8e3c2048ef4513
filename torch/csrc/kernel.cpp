// One boxed kernel for every overload of the engine's table.
//
//   call ─► types of the results (meta kernels of PyTorch, remembered) ─► arguments as values ─►
//   recorded ─► new tensors, or writes
//
// A row of the table is an overload in its functional form. In-place and out= overloads are found
// by their schemas: they have the same arguments, and are the functional form followed by a write.
// A call that the engine cannot lower is decomposed (decompose.h) or computed by the CPU. Both are
// counted.
//
// Invariants:
// - KERNEL-1: results have the types and sizes that PyTorch infers. The engine checks this
//   (TORCH-1).
// - KERNEL-2: the key of cached result types contains everything that they depend on: the overload,
//   the default dtype, types and sizes of tensors, and all other arguments by value. Numbers beside
//   tensors (`x * 2`) count only by kind and sign. Argument lists that differ in these have
//   different keys (Tag).

#include "kernel.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <c10/util/accumulate.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "arguments.h"
#include "decompose.h"
#include "device.h"
#include "overlap.h"
#include "quick.h"
#include "replicas.h"
#include "site.h"
#include "storage.h"

namespace fuseline {
namespace {

using c10::IValue;
using torch::jit::Stack;
using Key = c10::SmallVector<int64_t, 24>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (int64_t word : key) hash = (hash ^ static_cast<uint64_t>(word)) * 0x2127599bf4325c37u, hash ^= hash >> 29;
    return hash;
  }
};

// The variants of an operator that a kernel is registered for.
enum class Form { Functional, InPlace, Out };

void fall_back(const c10::OperatorHandle& op, Stack* stack, const std::string& why) {
  if (decompose(op, stack)) return;
  TORCH_CHECK(recording() == 0, device_name(), ": a graph cannot contain ", op.operator_name(),
              ", which the CPU would compute (", why, ")");
  TORCH_CHECK(may_fall_back(), device_name(), ": ", op.operator_name(),
              " has no kernel for these arguments on this device (", why, "), and fallbacks to the CPU are off"
              " (torch.", device_name(), ".set_fallback(True) turns them on)");
  TORCH_CHECK(replicas() == 1, device_name(), ": ", op.operator_name(), " would be computed by the CPU (",
              why, "), with the data of only one of ",
              replicas(), " replicas: compute it on CPU tensors from torch.", device_name(), ".per_replica");
  fallbacks().add(c10::toString(op.operator_name()), why);
  // Random ops draw from a CPU generator that is seeded from the given one.
  const auto& args = op.schema().arguments();
  for (size_t at = 0; at < args.size(); ++at) {
    const auto optional = args[at].type()->cast<c10::OptionalType>();
    const auto& inner = optional ? *optional->getElementType() : *args[at].type();
    if (inner.kind() != c10::TypeKind::GeneratorType) continue;
    IValue& arg = torch::jit::peek(*stack, at, args.size());
    const auto [seed, offset] = next_random(arg.isNone() ? std::nullopt : arg.toOptional<at::Generator>());
    arg = at::make_generator<at::CPUGeneratorImpl>(seed ^ (offset + 1) * 0x9e3779b97f4a7c15u);
  }
  at::native::cpu_fallback(op, stack);
}

// Checks the arguments of a call that PyTorch's CPU computes.
void check_fallback(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& schema = op.schema().arguments();
  const auto is_input = [](const c10::Argument& arg) { return !arg.is_out(); };
  const size_t inputs = std::count_if(schema.begin(), schema.end(), is_input);
  const c10::ArrayRef<IValue> args(stack.data() + stack.size() - schema.size(), inputs);
  check_types(op, args);
  if (args.empty() || !args[0].isTensor()) return;
  const ScalarConversion scalars(op);
  for (size_t at = 1; at < args.size(); ++at)
    if (scalars.converts(at) && args[at].isScalar())
      (void)scalars.convert(at, args[at].toScalar(), args[0].toTensor().scalar_type());
}

void fallback_kernel(const c10::OperatorHandle& op, Stack* stack) {
  const CallSite site;
  check_overlaps(op, *stack);
  if (write_overlapping(op, stack)) return;
  check_fallback(op, *stack);
  fall_back(op, stack, "no kernel is registered for it");
}

class Kernel final : public c10::OperatorKernel {
 public:
  Kernel(size_t row, Form form, c10::OperatorHandle functional, size_t inputs)
      : row_(row), form_(form), functional_(std::move(functional)), inputs_(inputs), meta_(meta_function(functional_.operator_name())),
        rule_(inference_rule(c10::toString(functional_.operator_name()))), scalars_(functional_) {
    const auto& args = functional_.schema().arguments();
    for (size_t at = 0; at < args.size(); ++at) {
      const auto& type = *args[at].type();
      const std::string name = args[at].name();
      is_place_.push_back(name == "dtype" || name == "layout" || name == "device" || name == "pin_memory" ||
                          name == "memory_format");
      const auto optional = type.cast<c10::OptionalType>();
      const auto& inner = optional ? *optional->getElementType() : type;
      is_generator_.push_back(inner.kind() == c10::TypeKind::GeneratorType);
      is_number_.push_back(type.kind() == c10::TypeKind::NumberType);
      has_tensor_ |= inner.kind() == c10::TypeKind::TensorType || inner.kind() == c10::TypeKind::ListType;
    }
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const CallSite site;
    if (form_ != Form::Functional) {
      check_overlaps(op, *stack);
      if (write_overlapping(op, stack)) return;
      if (form_ == Form::Out && takes_type_of_out(op)) take_type_of_out(op, stack);
    }
    if (const char* why = record(op, stack)) fall_back(op, stack, *why != 0 ? std::string(why) : last_message());
  }

 private:
  // Returns null if it was recorded, or why it cannot be. An empty text means that the engine's
  // message says why.
  const char* record(const c10::OperatorHandle& op, Stack* stack);
  bool key_of(c10::ArrayRef<IValue> args, Key& key) const;
  // Sets the argument `dtype` to the type of the `out=` tensor, if it is not given.
  void take_type_of_out(const c10::OperatorHandle& op, Stack* stack) const {
    const size_t count = op.schema().arguments().size();
    IValue* given = stack->data() + stack->size() - count;
    for (size_t at = 0; at < inputs_; ++at)
      if (is_place_[at] && given[at].isNone() && functional_.schema().arguments()[at].name() == "dtype")
        given[at] = static_cast<int64_t>(given[inputs_].toTensor().scalar_type());
  }
  // Result types for these arguments, and for a factory also for the type that it writes.
  std::shared_ptr<const Outs> infer(c10::ArrayRef<IValue> args, const IValue& dtype);

  size_t row_;
  Form form_;
  c10::OperatorHandle functional_;
  // The number of arguments that the called overload shares with the functional one.
  size_t inputs_;
  const c10::KernelFunction* meta_;
  const InferenceRule rule_;
  const ScalarConversion scalars_;
  std::vector<bool> is_place_, is_generator_, is_number_;
  bool has_tensor_ = false;
  std::shared_mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const Outs>, KeyHash> known_;
};

// Tags of the words of a key. Each argument is a tag followed by as many words as the tag and these
// words say. The encoding is thus prefix-free: different argument lists have different keys.
enum Tag : int64_t { kNone, kNoTensor, kTensor, kInt, kDouble, kComplex, kBool, kNumber, kString, kDevice, kGenerator, kInts, kDoubles, kBools, kTensors };

void add_tensor(const at::Tensor& tensor, Key& key) {
  if (!tensor.defined()) {
    key.push_back(kNoTensor);
    return;
  }
  key.push_back(kTensor);
  key.push_back(static_cast<int64_t>(tensor.scalar_type()) | tensor.dim() << 8 |
                static_cast<int64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()) << 16 |
                static_cast<int64_t>(is_ours(tensor)) << 17);
  key.append(tensor.sizes().begin(), tensor.sizes().end());
}

int64_t bits_of(double number) {
  int64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

// A list: its length, then its elements.
template <class List, class Add>
void add_list(Tag tag, const List& list, Key& key, const Add& add) {
  key.push_back(tag);
  key.push_back(static_cast<int64_t>(list.size()));
  for (const auto& item : list) add(item);
}

void add_text(const std::string& text, Key& key) {
  key.push_back(kString);
  key.push_back(static_cast<int64_t>(text.size()));
  for (size_t at = 0; at < text.size(); at += sizeof(int64_t)) {
    int64_t word = 0;
    std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
    key.push_back(word);
  }
}

// A number beside tensors: its kind, and its sign, which type errors depend on.
void add_number(const c10::Scalar& number, Key& key) {
  key.push_back(kNumber);
  const bool is_negative = !number.isComplex() && !number.isBoolean() && number.toDouble() < 0;
  key.push_back(static_cast<int64_t>(number.type()) | static_cast<int64_t>(is_negative) << 8);
}

bool Kernel::key_of(c10::ArrayRef<IValue> args, Key& key) const {
  for (size_t at = 0; at < args.size(); ++at) {
    const IValue& arg = args[at];
    // A plain integer, such as a dimension, or a number; the schema tells which.
    const bool is_number = has_tensor_ && is_number_[at];
    if (is_generator_[at]) {
      key.push_back(kGenerator);
    } else if (arg.isNone()) {
      key.push_back(kNone);
    } else if (arg.isTensor()) {
      add_tensor(arg.toTensor(), key);
    } else if (arg.isScalar() && is_number) {
      add_number(arg.toScalar(), key);
    } else if (arg.isInt()) {
      key.append({kInt, arg.toInt()});
    } else if (arg.isDouble()) {
      // Beside tensors its value does not affect types.
      key.append({kDouble, has_tensor_ ? 0 : bits_of(arg.toDouble())});
    } else if (arg.isBool()) {
      key.append({kBool, arg.toBool()});
    } else if (arg.isComplexDouble()) {
      const auto number = arg.toComplexDouble();
      key.append({kComplex, bits_of(number.real()), bits_of(number.imag())});
    } else if (arg.isIntList()) {
      add_list(kInts, arg.toIntVector(), key, [&](int64_t number) { key.push_back(number); });
    } else if (arg.isDoubleList()) {
      add_list(kDoubles, arg.toDoubleVector(), key, [&](double number) { key.push_back(bits_of(number)); });
    } else if (arg.isBoolList()) {
      add_list(kBools, arg.toBoolList(), key, [&](bool flag) { key.push_back(flag); });
    } else if (arg.isTensorList()) {
      add_list(kTensors, arg.toTensorVector(), key, [&](const at::Tensor& tensor) { add_tensor(tensor, key); });
    } else if (arg.isOptionalTensorList()) {
      add_list(kTensors, arg.toOptionalTensorVector(), key,
               [&](const std::optional<at::Tensor>& tensor) { add_tensor(tensor.value_or(at::Tensor()), key); });
    } else if (arg.isString()) {
      add_text(arg.toStringRef(), key);
    } else if (arg.isDevice()) {
      key.push_back(kDevice);
    } else {
      return false;
    }
  }
  return true;
}

at::Tensor on_meta(const at::Tensor& tensor) {
  // A scalar tensor of the CPU: meta kernels in Python treat it as a number.
  if (!tensor.defined() || (tensor.device().is_cpu() && tensor.dim() == 0)) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

// PyTorch's meta kernels of nearest-neighbour resizing fail for an empty batch: their check of the
// other sizes has an integer where a bool is expected (in 2.15). They are called with a batch of
// one.
bool resizes_no_batch(const std::string& name, const at::Tensor& x) {
  if (!x.defined() || x.dim() < 3 || x.size(0) != 0) return false;
  if (name.find("upsample_nearest") == std::string::npos || name.find("backward") != std::string::npos) return false;
  TORCH_CHECK(c10::multiply_integers(x.sizes().slice(1)) != 0, "Non-empty ", x.dim(), "D data tensor expected but got a tensor with sizes ", x.sizes());
  return true;
}
at::Tensor with_batch_of_one(const at::Tensor& x) {
  c10::SmallVector<int64_t, 5> sizes(x.sizes());
  sizes[0] = 1;
  return at::empty(sizes, x.options());
}

std::shared_ptr<const Outs> Kernel::infer(c10::ArrayRef<IValue> args, const IValue& dtype) {
  if (Outs inferred; rule_ != nullptr && rule_(args, inferred)) return std::make_shared<Outs>(std::move(inferred));
  Stack stack;
  const auto& schema = functional_.schema();
  const bool has_no_batch = !args.empty() && args[0].isTensor() && resizes_no_batch(schema.name(), args[0].toTensor());
  for (size_t at = 0; at < schema.arguments().size(); ++at) {
    IValue arg = at < args.size() ? args[at] : schema.arguments()[at].name() == "dtype" ? dtype : IValue();
    if (arg.isTensor()) {
      at::Tensor meta = on_meta(arg.toTensor());
      arg = has_no_batch && at == 0 ? with_batch_of_one(meta) : meta;
    } else if (arg.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : arg.toTensorVector()) list.push_back(on_meta(tensor));
      arg = list;
    } else if (arg.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : arg.toOptionalTensorList())
        list.push_back(tensor ? std::optional(on_meta(*tensor)) : std::nullopt);
      arg = list;
    } else if (arg.isDevice() || schema.arguments()[at].name() == "device") {
      arg = c10::Device(c10::kMeta);
    } else if (is_generator_[at]) {
      arg = IValue();
    }
    stack.push_back(std::move(arg));
  }
  const c10::DispatchKeySet keys(c10::DispatchKey::Meta);
  if (meta_ != nullptr) {
    meta_->callBoxed(functional_, keys, &stack);
  } else {
    functional_.redispatchBoxed(keys, &stack);
  }
  auto outs = std::make_shared<Outs>();
  auto add = [&](const at::Tensor& tensor, bool is_list_item) {
    Out out;
    out.is_list_item = is_list_item;
    if (tensor.defined()) {
      out.dtype = tensor.scalar_type();
      out.dims = tensor.sizes();
      if (has_no_batch) out.dims[0] = 0;
    }
    outs->push_back(std::move(out));
  };
  for (const IValue& result : stack) {
    if (result.isTensor()) {
      add(result.toTensor(), false);
    } else if (result.isTensorList()) {
      for (const at::Tensor& tensor : result.toTensorVector()) add(tensor, true);
    } else if (result.isNone()) {
      add(at::Tensor(), false);
    } else {
      return nullptr;
    }
  }
  return outs;
}

// Matrix products and ops built on them get tensors with the conjugate bit set. For all others
// PyTorch resolves it.
Value with_bits(Value value, const at::Tensor& tensor) {
  if (!tensor.is_conj() && !tensor.is_neg()) return value;
  Value plain;
  check(flt_bits(value.get(), tensor.is_conj(), tensor.is_neg(), plain.out()));
  return plain;
}

// Arguments in the engine's form, and the objects that keep them alive.
struct EngineArgs {
  c10::SmallVector<FltArg, 8> args;
  // Reserved up front, so that no element moves.
  c10::SmallVector<Value, 4> values;
  std::vector<std::vector<const FltValue*>> lists;
  std::vector<std::vector<int64_t>> ints;
  std::vector<std::vector<double>> numbers;

  EngineArgs(size_t tensors, size_t count) {
    values.reserve(tensors);
    if (tensors > count) lists.reserve(count);
  }

  FltArg& add(uint32_t tag, size_t count = 0) {
    args.push_back(FltArg{tag, static_cast<uint32_t>(count), {}});
    return args.back();
  }
  void add_number(const c10::Scalar& number) {
    if (number.isBoolean()) {
      add(FLT_BOOL).integer = number.toBool();
    } else if (number.isIntegral(false)) {
      add(FLT_INT).integer = number.toLong();
    } else if (number.isFloatingPoint()) {
      add(FLT_FLOAT).number = number.toDouble();
    } else {
      const auto complex = number.toComplexDouble();
      add_numbers(FLT_COMPLEX, {complex.real(), complex.imag()});
    }
  }
  // The elements of a vector stay in place when the vector is moved.
  void add_numbers(uint32_t tag, std::vector<double> list) {
    numbers.push_back(std::move(list));
    add(tag, numbers.back().size()).numbers = numbers.back().data();
  }
  void add_ints(std::vector<int64_t> list) {
    ints.push_back(std::move(list));
    add(FLT_INTS, ints.back().size()).ints = ints.back().data();
  }
  // Null for an undefined tensor.
  const FltValue* value_of(const at::Tensor& tensor) {
    if (!tensor.defined()) return nullptr;
    values.push_back(with_bits(is_ours(tensor) ? read(tensor) : upload(tensor), tensor));
    return values.back().get();
  }
  void add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      add(FLT_NONE);
    } else if (!is_ours(tensor) && tensor.dim() == 0) {
      // A scalar tensor of the CPU is passed as a number.
      add_number(tensor.item());
    } else {
      const FltValue* value = value_of(tensor);
      add(FLT_VALUE).value = value;
    }
  }
  template <class List>
  void add_tensors(const List& list) {
    std::vector<const FltValue*> pointers;
    for (const auto& tensor : list) pointers.push_back(value_of(tensor));
    lists.push_back(std::move(pointers));
    add(FLT_VALUES, lists.back().size()).values = lists.back().data();
  }
};

bool is_known(const at::Tensor& tensor) {
  return !tensor.defined() ||
         (code_of(tensor.scalar_type()) != 0 && tensor.layout() == c10::kStrided && !tensor.is_sparse() &&
          (is_ours(tensor) || tensor.device().is_cpu()));
}

// Whether an argument can be passed to the engine at all.
bool is_known(const IValue& arg) {
  if (arg.isTensor()) return is_known(arg.toTensor());
  if (arg.isTensorList()) {
    const auto list = arg.toTensorVector();
    return std::all_of(list.begin(), list.end(), [](const at::Tensor& tensor) { return is_known(tensor); });
  }
  if (arg.isOptionalTensorList()) {
    // Masks as indices: the sizes of the result depend on how many elements are true, which only
    // the data says.
    for (const std::optional<at::Tensor>& tensor : arg.toOptionalTensorList()) {
      if (!tensor || !tensor->defined()) continue;
      if (!is_known(*tensor) || tensor->scalar_type() == c10::kBool || tensor->scalar_type() == c10::kByte) return false;
    }
  }
  return true;
}

size_t count_tensors(c10::ArrayRef<IValue> args) {
  size_t count = 0;
  for (const IValue& arg : args) {
    if (arg.isTensor()) {
      ++count;
    } else if (arg.isTensorList() || arg.isOptionalTensorList()) {
      count += arg.toListRef().size() + args.size();
    }
  }
  return count;
}

const char* Kernel::record(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  c10::ArrayRef<IValue> given(stack->data() + stack->size() - count, count);
  c10::ArrayRef<IValue> args = given.slice(0, std::min(inputs_, count));
  for (const IValue& arg : given) {
    if (!is_known(arg)) return "a tensor has an unsupported layout or dtype, or an index is boolean";
    TORCH_CHECK(!arg.isTensor() || !arg.toTensor().defined() || is_ours(arg.toTensor()) || arg.toTensor().dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, ", device_name(), ":0 and ",
                arg.toTensor().device(), "! (in ", op.operator_name(), ")");
  }

  // `is_decomposing`, because check_types makes fewer checks for the calls of a decomposition. The
  // default dtype, because integers can produce results of it.
  Key key{is_decomposing(), static_cast<int64_t>(c10::get_default_dtype_as_scalartype())};
  if (!key_of(args, key)) return "an argument has an unsupported kind";
  IValue dtype;
  // A factory takes the type of its `out=` argument.
  const auto& whole = functional_.schema().arguments();
  const auto is_type = [](const c10::Argument& arg) { return arg.name() == "dtype"; };
  if (form_ == Form::Out && std::any_of(whole.begin() + inputs_, whole.end(), is_type) && given[inputs_].isTensor()) {
    dtype = static_cast<int64_t>(given[inputs_].toTensor().scalar_type());
    key.append({kInt, dtype.toInt()});
  }
  std::shared_ptr<const Outs> outs;
  {
    std::shared_lock lock(mutex_);
    auto found = known_.find(key);
    if (found != known_.end()) outs = found->second;
  }
  if (!outs) {
    check_types(op, args);
    outs = infer(args, dtype);
    std::unique_lock lock(mutex_);
    known_.emplace(std::move(key), outs);
  }
  if (!outs) return "a result is not a tensor";
  if (form_ == Form::Out) {
    for (size_t at = 0; at < outs->size() && inputs_ + at < count; ++at) {
      const IValue& target = given[inputs_ + at];
      if (target.isTensor()) check_out(op, target.toTensor().scalar_type(), (*outs)[at].dtype);
    }
  }

  EngineArgs passed(count_tensors(args), count);
  for (size_t at = 0; at < args.size(); ++at) {
    const IValue& arg = args[at];
    if (is_place_[at]) {
      passed.add(FLT_NONE);
    } else if (scalars_.converts(at) && arg.isScalar() && !outs->empty()) {
      passed.add_number(scalars_.convert(at, arg.toScalar(), (*outs)[0].dtype));
    } else if (is_generator_[at] && recording() != 0) {
      TORCH_CHECK(arg.isNone(), device_name(), ": a graph cannot draw from an explicit generator");
      passed.add(FLT_DRAW);
    } else if (is_generator_[at]) {
      const auto [seed, offset] = next_random(arg.isNone() ? std::nullopt : arg.toOptional<at::Generator>());
      passed.add_ints({static_cast<int64_t>(seed), static_cast<int64_t>(offset)});
    } else if (arg.isTensor()) {
      passed.add_tensor(arg.toTensor());
    } else if (arg.isTensorList()) {
      passed.add_tensors(arg.toTensorVector());
    } else if (arg.isOptionalTensorList()) {
      std::vector<at::Tensor> list;
      for (const std::optional<at::Tensor>& tensor : arg.toOptionalTensorList()) list.push_back(tensor.value_or(at::Tensor()));
      passed.add_tensors(list);
    } else if (arg.isNone()) {
      passed.add(FLT_NONE);
    } else if (arg.isBool()) {
      passed.add(FLT_BOOL).integer = arg.toBool();
    } else if (arg.isInt()) {
      passed.add(FLT_INT).integer = arg.toInt();
    } else if (arg.isDouble()) {
      passed.add(FLT_FLOAT).number = arg.toDouble();
    } else if (arg.isComplexDouble()) {
      passed.add_number(arg.toScalar());
    } else if (arg.isIntList()) {
      passed.add_ints(arg.toIntVector());
    } else if (arg.isBoolList()) {
      std::vector<int64_t> list;
      for (bool flag : arg.toBoolList()) list.push_back(flag);
      passed.add_ints(std::move(list));
    } else if (arg.isDoubleList()) {
      passed.add_numbers(FLT_FLOATS, arg.toDoubleVector());
    } else if (arg.isString()) {
      const std::string& text = arg.toStringRef();
      passed.add(FLT_TEXT, text.size()).text = text.data();
    } else {
      return "an argument has an unsupported kind";
    }
  }
  // The engine returns tensors only.
  c10::SmallVector<FltType, 2> types;
  for (const Out& out : *outs) {
    if (out.dtype == c10::ScalarType::Undefined) continue;
    if (code_of(out.dtype) == 0) return "a result has a dtype that the engine does not support";
    types.push_back(type_of(out.dtype, out.dims));
  }
  constexpr size_t kMore = 4;
  const size_t room = types.size() + kMore;
  std::array<Value, 8> few;
  std::vector<Value> many(room > few.size() ? room : 0);
  Value* results = many.empty() ? few.data() : many.data();
  size_t made = 0;
  const FltStatus status = flt_record(row_, passed.args.data(), passed.args.size(), types.data(), types.size(),
                                      results->out(), room, &made);
  if (status == FLT_UNSUPPORTED) return "";
  TORCH_CHECK(status != FLT_WRONG, last_message());
  check(status);

  // Batch norm writes its running statistics, which its schema does not say.
  for (size_t more = types.size(); more < made; ++more) {
    const IValue& target = given[3 + more - types.size()];
    if (target.isTensor() && target.toTensor().defined()) write(target.toTensor(), std::move(results[more]));
  }

  size_t next = 0;
  if (form_ == Form::Functional) {
    Stack returned;
    c10::List<at::Tensor> list;
    const bool is_list = !outs->empty() && (*outs)[0].is_list_item;
    for (const Out& out : *outs) {
      at::Tensor tensor;
      if (out.dtype != c10::ScalarType::Undefined) tensor = make(std::move(results[next++]), out.dtype, out.dims);
      if (is_list) {
        list.push_back(std::move(tensor));
      } else {
        returned.emplace_back(std::move(tensor));
      }
    }
    if (is_list) returned.emplace_back(std::move(list));
    torch::jit::drop(*stack, count);
    for (IValue& value : returned) stack->push_back(std::move(value));
    return nullptr;
  }
  // The targets are the first argument, or those after the functional form's.
  std::vector<at::Tensor> targets;
  for (size_t at = form_ == Form::InPlace ? 0 : inputs_; targets.size() < outs->size() && at < count; ++at)
    targets.push_back(given[at].toTensor());
  const bool converts = form_ == Form::Out && converts_to_out(op);
  for (size_t at = 0; at < targets.size(); ++at) {
    const Out& out = (*outs)[at];
    if (out.dtype == c10::ScalarType::Undefined) continue;
    const at::ScalarType type = converts ? targets[at].scalar_type() : out.dtype;
    prepare_target(targets[at], type, out.dims, form_ == Form::Out);
  }
  if (form_ == Form::Out) check_overlaps(op, *stack, true);
  for (size_t at = 0; at < targets.size(); ++at) {
    const Out& out = (*outs)[at];
    const at::Tensor& target = targets[at];
    if (out.dtype == c10::ScalarType::Undefined) continue;
    Value value = std::move(results[next++]);
    if (out.dtype != target.scalar_type()) value = converted(std::move(value), target.scalar_type(), target.sizes());
    write(target, with_bits(std::move(value), target));
  }
  torch::jit::drop(*stack, count);
  for (const at::Tensor& target : targets) stack->emplace_back(target);
  return nullptr;
}

struct Row {
  size_t number;
  std::string name, overload;
};

std::vector<Row> rows() {
  std::vector<Row> rows;
  for (size_t number = 0; number < flt_op_count(); ++number) {
    size_t len = 0;
    const char* text = flt_op_name(number, &len);
    const std::string full(text, len);
    const size_t dot = full.find('.');
    const std::string space = full.find("::") == std::string::npos ? "aten::" : "";
    rows.push_back({number, space + full.substr(0, dot), dot == std::string::npos ? "" : full.substr(dot + 1)});
  }
  return rows;
}

// An operator that is composed of others and has no derivative of its own would lose its gradient
// if it had a kernel.
bool has_composite_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::Autograd);
}

torch::Library& library(bool is_own = false) {
  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static torch::Library own(torch::Library::IMPL, "fuseline", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  return is_own ? own : aten;
}

void implement(const c10::OperatorHandle& op, const Row& row, Form form, const c10::OperatorHandle& functional,
               size_t inputs) {
  const auto& name = op.operator_name();
  const std::string full = name_of(op);
  const auto boxed = c10::BoxedKernel::makeFromFunctor(std::make_unique<Kernel>(row.number, form, functional, inputs));
  torch::Library& home = library(name.name.rfind("fuseline::", 0) == 0);
  if (!register_quick(home, op, boxed)) home.impl(full.c_str(), torch::CppFunction::makeFromBoxedKernel(boxed));
}

}  // namespace

Counts& fallbacks() {
  static Counts counts;
  return counts;
}

void register_kernels() {
  // The result has the type of the operand. PyTorch has no meta kernel for this op.
  static torch::Library meta(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  const auto running = c10::Dispatcher::singleton().findSchema({"aten::_logcumsumexp", ""});
  if (running && !running->hasKernelForDispatchKey(c10::DispatchKey::Meta))
    meta.impl("_logcumsumexp", [](const at::Tensor& self, int64_t) { return at::empty_like(self); });
  auto& dispatcher = c10::Dispatcher::singleton();
  std::map<std::string, std::vector<c10::OperatorHandle>> all;
  for (const auto& name : dispatcher.getAllOpNames())
    if (auto op = dispatcher.findSchema(name)) all[name.name].push_back(*op);
  std::unordered_map<c10::OperatorName, int> done;
  for (const Row& row : rows()) {
    auto functional = dispatcher.findSchema({row.name, row.overload});
    TORCH_CHECK(functional, device_name(), ": this PyTorch has no ", row.name, ".", row.overload);
    TORCH_CHECK(!has_composite_kernel(*functional), device_name(), ": ", row.name, ".", row.overload,
                " is a composite op");
    const auto& schema = functional->schema();
    const bool is_functional = std::none_of(schema.arguments().begin(), schema.arguments().end(), is_written);
    TORCH_CHECK(is_functional, device_name(), ": ", row.name, ".", row.overload, " writes to its arguments");
    implement(*functional, row, Form::Functional, *functional, schema.arguments().size());
    for (const auto& op : all[row.name]) {
      const auto& other = op.schema();
      const size_t outs = std::count_if(other.arguments().begin(), other.arguments().end(), is_written);
      const size_t inputs = other.arguments().size() - outs;
      const bool is_out = outs > 0 && is_written(other.arguments().back()) && other.arguments().back().is_out();
      if (is_out && matches(schema, other, inputs) && !has_composite_kernel(op) && done[op.operator_name()]++ == 0)
        implement(op, row, Form::Out, *functional, inputs);
    }
    // Operators whose functional forms have other names.
    const std::string in_place = row.name == "aten::normal_functional" ? "aten::normal_" : row.name + "_";
    const std::string overload = row.name == "aten::bernoulli" && row.overload == "p" ? "float" : row.overload;
    for (const auto& op : all[in_place]) {
      const auto& other = op.schema();
      if (other.overload_name() == overload && matches(schema, other, other.arguments().size()) &&
          !has_composite_kernel(op) && done[op.operator_name()]++ == 0)
        implement(op, row, Form::InPlace, *functional, other.arguments().size());
    }
  }
}

void register_fallback() {
  static torch::Library library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_kernel>());
}

}  // namespace fuseline
