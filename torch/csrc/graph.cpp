// Graphs that are recorded once and called as one op (engine/src/graph.rs), for `torch.compile`
// (torch_fuseline/_compile.py).
//
// A graph is a function of tensors. Python runs it once on placeholders while this thread records.
// It is recorded once for each kind of inputs: a *variant*. A call finds the variant for its inputs
// and passes their values to the engine.
//
// Invariants:
// - CGRAPH-1: a variant is used only for inputs of the types, sizes and strides that it was
//   recorded for, and for the same numbers.
// - CGRAPH-2: results have the strides of the recording. Results that shared a storage with each
//   other or with an input share one again.
// - CGRAPH-3: what the graph writes to an input is written to the tensor that is passed for it.

#include <ATen/core/Tensor.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "device.h"
#include "site.h"
#include "storage.h"

namespace fuseline {
namespace {

using Dims = c10::SmallVector<int64_t, 5>;

// Sizes and strides of a tensor in its storage.
struct View {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  Dims sizes, strides;
  int64_t offset = 0;

  static View of(const at::Tensor& tensor) {
    return {tensor.scalar_type(), Dims(tensor.sizes()), Dims(tensor.strides()), tensor.storage_offset()};
  }
};

struct Input {
  // Each call uploads the tensors of the CPU.
  enum Kind { kWhole, kStorage, kHost } kind = kWhole;
  View view;
  // Sizes of the storage's value, if the storage is passed (kStorage).
  Dims storage;

  static Input of(const at::Tensor& tensor) {
    Input input;
    input.view = View::of(tensor);
    TORCH_CHECK(tensor.layout() == c10::kStrided && !tensor.is_conj() && !tensor.is_neg(),
                device_name(), ": a graph input must be a strided tensor that is not a conjugate or negative view");
    if (!is_ours(tensor)) {
      TORCH_CHECK(tensor.device().is_cpu(),
                  device_name(), ": a graph input must be on the CPU or on the device ", device_name(), ", not on ",
                  tensor.device());
      input.kind = kHost;
      input.view.offset = 0;
    } else if (tensor.is_contiguous()) {
      input.view.offset = 0;
    } else {
      input.kind = kStorage;
      const Value value = read_storage(tensor);
      input.storage = buf_of(tensor).dims;
    }
    return input;
  }

  // CGRAPH-1.
  bool is_of(const at::Tensor& tensor) const {
    if (tensor.scalar_type() != view.dtype || tensor.sizes() != c10::IntArrayRef(view.sizes)) return false;
    if (is_ours(tensor) != (kind != kHost) || tensor.is_conj() || tensor.is_neg()) return false;
    if (kind == kHost) return tensor.device().is_cpu();
    if (kind == kWhole) return tensor.is_contiguous();
    if (tensor.strides() != c10::IntArrayRef(view.strides) || tensor.storage_offset() != view.offset) return false;
    const Buf& buf = buf_of(tensor);
    return buf.value && buf.dtype == view.dtype && buf.dims == storage;
  }

  Value value_of(const at::Tensor& tensor) const {
    return kind == kHost ? upload(tensor) : kind == kWhole ? read(tensor) : read_storage(tensor);
  }
};

struct Output {
  View view;
  // The output lies in a storage that the call makes, or in an input, or is the same tensor each
  // time.
  std::optional<size_t> made, input;
  at::Tensor constant;
};

// The value of a storage that a call makes.
struct NewStorage {
  c10::ScalarType dtype;
  Dims dims;
};

struct Variant {
  uint64_t number = 0;
  size_t draws = 0;
  std::vector<int64_t> numbers;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  // Results of a call: the storages of outputs, then the new values of the inputs in `written`.
  std::vector<NewStorage> made;
  std::vector<size_t> written;

  Variant() = default;
  Variant(const Variant&) = delete;
  Variant& operator=(const Variant&) = delete;
  ~Variant() {
    if (number != 0) flt_graph_forget(number);
  }
  bool is_for(const std::vector<at::Tensor>& tensors, c10::IntArrayRef given) const {
    if (c10::IntArrayRef(numbers) != given || tensors.size() != inputs.size()) return false;
    for (size_t at = 0; at < inputs.size(); ++at)
      if (!inputs[at].is_of(tensors[at])) return false;
    return true;
  }
};

struct Graph {
  std::string name;
  bool is_apart = false;
  std::mutex mutex;
  std::vector<std::shared_ptr<Variant>> variants;
};

std::mutex graphs_mutex;
std::map<int64_t, std::shared_ptr<Graph>> graphs;
int64_t next_graph = 1;
std::atomic<uint64_t> next_recording{1};

std::shared_ptr<Graph> find(int64_t number) {
  std::scoped_lock lock(graphs_mutex);
  const auto found = graphs.find(number);
  TORCH_CHECK(found != graphs.end(), device_name(), ": there is no graph ", number);
  return found->second;
}

// What this thread is recording.
struct Recording {
  std::shared_ptr<Graph> graph;
  std::shared_ptr<Variant> variant;
  std::vector<at::Tensor> placeholders;
  // The values of the placeholders at the start.
  std::vector<Value> values;
};
thread_local std::unique_ptr<Recording> current;

int64_t graph_new(std::string name, bool is_apart) {
  auto graph = std::make_shared<Graph>();
  graph->name = std::move(name);
  graph->is_apart = is_apart;
  std::scoped_lock lock(graphs_mutex);
  graphs.emplace(next_graph, std::move(graph));
  return next_graph++;
}

void graph_forget(int64_t number) {
  std::shared_ptr<Graph> graph;
  std::scoped_lock lock(graphs_mutex);
  if (const auto found = graphs.find(number); found != graphs.end()) {
    graph = std::move(found->second);
    graphs.erase(found);
  }
}

at::Tensor in_storage(const at::Tensor& base, const View& view) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(base.storage()), base.key_set(),
                                                               caffe2::TypeMeta::fromScalarType(view.dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(view.offset);
  impl->set_sizes_and_strides(view.sizes, view.strides);
  return tensor;
}

void graph_abort() {
  set_recording(0);
  flt_graph_abort();
  current.reset();
}

std::vector<at::Tensor> graph_begin(int64_t number, std::vector<at::Tensor> inputs, std::vector<int64_t> numbers) {
  TORCH_CHECK(!current, device_name(), ": this thread is already recording a graph");
  auto next = std::make_unique<Recording>();
  next->graph = find(number);
  next->variant = std::make_shared<Variant>();
  next->variant->numbers = std::move(numbers);
  for (const at::Tensor& input : inputs) next->variant->inputs.push_back(Input::of(input));
  check(flt_graph_begin(next->graph->name.data(), next->graph->name.size()));
  current = std::move(next);
  set_recording(next_recording.fetch_add(1));
  try {
    for (const Input& input : current->variant->inputs) {
      const bool is_storage = input.kind == Input::kStorage;
      const Dims& dims = is_storage ? input.storage : input.view.sizes;
      FltType type = type_of(input.view.dtype, dims);
      Value param;
      check(flt_graph_param(&type, param.out()));
      current->values.push_back(param.another());
      at::Tensor whole = make(std::move(param), input.view.dtype, dims);
      current->placeholders.push_back(is_storage ? in_storage(whole, input.view) : std::move(whole));
    }
  } catch (...) {
    graph_abort();
    throw;
  }
  return current->placeholders;
}

bool is_same(const Value& a, const Value& b) {
  return a.get()->words[0] == b.get()->words[0] && a.get()->words[1] == b.get()->words[1];
}

void end(Recording& recording, const std::vector<at::Tensor>& outputs) {
  Variant& variant = *recording.variant;
  std::map<const Buf*, size_t> inputs, made;
  for (size_t at = 0; at < recording.placeholders.size(); ++at) inputs.emplace(&buf_of(recording.placeholders[at]), at);
  std::vector<Value> returns;
  for (const at::Tensor& tensor : outputs) {
    TORCH_CHECK(tensor.defined() && !tensor.is_conj() && !tensor.is_neg(),
                device_name(), ": a graph cannot return an undefined tensor, or a conjugate or negative view");
    Output output;
    output.view = View::of(tensor);
    const Buf* buf = is_ours(tensor) ? &buf_of(tensor) : nullptr;
    if (buf == nullptr || buf->recording != fuseline::recording()) {
      output.constant = tensor;
    } else if (const auto found = inputs.find(buf); found != inputs.end()) {
      TORCH_CHECK(variant.inputs[found->second].kind != Input::kHost, device_name(),
                  ": a graph cannot return a CPU tensor");
      output.input = found->second;
    } else {
      const auto [place, is_new] = made.emplace(buf, returns.size());
      if (is_new) {
        returns.push_back(read_storage(tensor));
        variant.made.push_back({buf->dtype, buf->dims});
      }
      output.made = place->second;
    }
    variant.outputs.push_back(std::move(output));
  }
  for (size_t at = 0; at < recording.placeholders.size(); ++at) {
    Value now = read_storage(recording.placeholders[at]);
    if (is_same(now, recording.values[at])) continue;
    TORCH_CHECK(variant.inputs[at].kind != Input::kHost, device_name(), ": a graph cannot write to a CPU tensor");
    const Buf& buf = buf_of(recording.placeholders[at]);
    variant.written.push_back(at);
    variant.made.push_back({buf.dtype, buf.dims});
    returns.push_back(std::move(now));
  }
  std::vector<const FltValue*> pointers;
  for (const Value& value : returns) pointers.push_back(value.get());
  check(flt_graph_end(pointers.data(), pointers.size(), &variant.number, &variant.draws));
}

void graph_end(std::vector<at::Tensor> outputs) {
  TORCH_CHECK(current, device_name(), ": this thread is not recording a graph");
  try {
    end(*current, outputs);
    std::scoped_lock lock(current->graph->mutex);
    current->graph->variants.push_back(current->variant);
  } catch (...) {
    graph_abort();
    throw;
  }
  set_recording(0);
  current.reset();
}

std::tuple<bool, std::vector<at::Tensor>> graph_call(int64_t number, std::vector<at::Tensor> inputs, std::vector<int64_t> numbers) {
  const CallSite site;
  const auto graph = find(number);
  std::shared_ptr<Variant> variant;
  {
    std::scoped_lock lock(graph->mutex);
    for (auto& one : graph->variants) {
      if (!one->is_for(inputs, numbers)) continue;
      variant = one;
      // Move the variant to the front, so that it is found first.
      std::swap(one, graph->variants.front());
      break;
    }
  }
  if (!variant) return {false, {}};
  std::vector<Value> values;
  std::vector<const FltValue*> pointers;
  values.reserve(inputs.size());
  for (size_t at = 0; at < inputs.size(); ++at) {
    values.push_back(variant->inputs[at].value_of(inputs[at]));
    pointers.push_back(values.back().get());
  }
  std::vector<std::array<uint64_t, 2>> draws(variant->draws);
  for (auto& draw : draws) std::tie(draw[0], draw[1]) = next_random(std::nullopt);
  std::vector<Value> results(variant->made.size());
  check(flt_graph_call(variant->number, graph->is_apart, pointers.data(), pointers.size(),
                       reinterpret_cast<const uint64_t(*)[2]>(draws.data()), draws.size(), results.empty() ? nullptr : results[0].out(),
                       results.size()));
  const size_t fresh = variant->made.size() - variant->written.size();
  std::vector<at::Tensor> made, outputs;
  for (size_t at = 0; at < fresh; ++at) made.push_back(make(std::move(results[at]), variant->made[at].dtype, variant->made[at].dims));
  for (size_t at = 0; at < variant->written.size(); ++at) {
    // CGRAPH-3. The value is the storage's if the storage was passed, and otherwise the tensor's.
    const size_t input = variant->written[at];
    const NewStorage& type = variant->made[fresh + at];
    at::Tensor target = inputs[input];
    if (variant->inputs[input].kind == Input::kStorage) {
      Dims strides(c10::contiguous_strides(type.dims));
      target = in_storage(target, {type.dtype, type.dims, strides, 0});
    }
    write(target, std::move(results[fresh + at]));
    inputs[input].unsafeGetTensorImpl()->bump_version();
  }
  for (const Output& output : variant->outputs) {
    if (output.made) {
      outputs.push_back(in_storage(made[*output.made], output.view));
    } else if (output.input) {
      // A whole tensor was recorded as if it had its own storage, so its offset is added.
      const at::Tensor& base = inputs[*output.input];
      View view = output.view;
      if (variant->inputs[*output.input].kind == Input::kWhole) view.offset += base.storage_offset();
      outputs.push_back(in_storage(base, view));
    } else {
      outputs.push_back(output.constant.alias());
    }
  }
  return {true, std::move(outputs)};
}

TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("graph_new(str name, bool is_apart) -> int", &graph_new);
  m.def("graph_forget(int graph) -> ()", &graph_forget);
  m.def("graph_begin(int graph, Tensor[] inputs, int[] numbers) -> Tensor[]", &graph_begin);
  m.def("graph_end(Tensor[] outputs) -> ()", &graph_end);
  m.def("graph_abort() -> ()", &graph_abort);
  m.def("graph_call(int graph, Tensor[] inputs, int[] numbers) -> (bool, Tensor[])", &graph_call);
}

}  // namespace
}  // namespace fuseline
