// The device as several replicas, and collectives between them: ops of the recorded program, inside
// its executables.
//
//   one program ─► one executable ─► replica 0, 1, .. (a device of XLA each, with data of its own)
//                  └ with the collectives in it, fused with what is around them
//
// A tensor has data on each replica, and ops compute on each separately. Communication consists of
// ops as well: rows of the engine's table (engine/src/ops/replicas.rs). `Replicas` is a backend of
// torch.distributed whose ranks are the replicas. A call records one of these ops, writes its
// result and returns a `Done`, which is already complete because later ops come after it.
//
// There is one Python program. Its rank is 0, and it runs on all replicas, so nothing here depends
// on the rank. What concerns one rank only (the result of a `reduce`) is selected by the replica
// index, which is a value of the program. What would need several programs (`send`) is refused.
//
// Invariants:
// - REPLICA-1: only `replica_download` and `agreed` read data here. A collective ends no region.
// - REPLICA-2: data of one replica never silently decides for another. With several replicas, calls
//   that the CPU would compute are refused (kernel.cpp), and so are decompositions that read data
//   (basics.cpp). A bool or integer that Python reads must be the same on all replicas (`agreed`).
// - REPLICA-3: collectives of processes (distributed.cpp) would move the data of replica 0 only,
//   and are refused with several replicas.

#include "replicas.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <algorithm>

#include "c10d_names.h"
#include "site.h"
#include "storage.h"

namespace fuseline {

size_t replicas() {
  static const size_t count = [] {
    size_t count = 1;
    check(flt_replicas(&count));
    return count;
  }();
  return count;
}

namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;

// ----- ops -----

// The op of a schema, looked up once.
template <typename Signature, typename... Args>
at::Tensor call(const c10::OperatorHandle& op, Args&&... args) {
  return op.typed<Signature>().call(std::forward<Args>(args)...);
}

c10::OperatorHandle op_of(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

at::Tensor index_like(const at::Tensor& tensor) {
  static const auto op = op_of("fuseline::replica_index");
  return call<at::Tensor(const at::Tensor&)>(op, tensor);
}
at::Tensor all_reduced(const at::Tensor& tensor, c10::string_view how) {
  static const auto op = op_of("fuseline::replica_all_reduce");
  return call<at::Tensor(const at::Tensor&, c10::string_view)>(op, tensor, how);
}
at::Tensor all_gathered(const at::Tensor& tensor) {
  static const auto op = op_of("fuseline::replica_all_gather");
  return call<at::Tensor(const at::Tensor&, int64_t)>(op, tensor, int64_t{0});
}
at::Tensor reduce_scattered(const at::Tensor& tensor, c10::string_view how) {
  static const auto op = op_of("fuseline::replica_reduce_scatter");
  return call<at::Tensor(const at::Tensor&, c10::string_view, int64_t)>(op, tensor, how, int64_t{0});
}
at::Tensor all_to_all(const at::Tensor& tensor) {
  static const auto op = op_of("fuseline::replica_all_to_all");
  return call<at::Tensor(const at::Tensor&)>(op, tensor);
}
at::Tensor of_replica(const at::Tensor& tensor, int64_t source) {
  static const auto op = op_of("fuseline::replica_broadcast");
  return call<at::Tensor(const at::Tensor&, int64_t)>(op, tensor, source);
}
at::Tensor own_chunk(const at::Tensor& tensor) {
  static const auto op = op_of("fuseline::replica_chunk");
  return call<at::Tensor(const at::Tensor&, int64_t)>(op, tensor, int64_t{0});
}

// Types of the results. The sizes are cached like those of PyTorch's ops (KERNEL-2); the number of
// replicas never changes.

int64_t count() { return static_cast<int64_t>(replicas()); }

at::Tensor same_meta(const at::Tensor& self) { return at::empty(self.sizes(), self.options()); }

at::Tensor resized_meta(const at::Tensor& self, int64_t dim, bool is_whole) {
  std::vector<c10::SymInt> sizes = self.sym_sizes().vec();
  TORCH_CHECK(0 <= dim && dim < self.dim(), device_name(), ": dimension ", dim,
              " is out of range: the number of dimensions is ", self.dim());
  if (is_whole) {
    sizes[dim] = sizes[dim] * count();
  } else {
    TORCH_CHECK(sizes[dim] % count() == 0, device_name(), ": dimension ", dim, " has ", sizes[dim],
                " elements, which ", count(),
                " replicas cannot share equally: pad it or cut it to a multiple of ", count());
    sizes[dim] = sizes[dim] / count();
  }
  return at::empty_symint(sizes, self.options());
}

TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  // The operand selects the device.
  m.def("replica_index(Tensor like) -> Tensor");
  m.def("replica_all_reduce(Tensor self, str op) -> Tensor");
  m.def("replica_all_gather(Tensor self, int dim) -> Tensor");
  m.def("replica_reduce_scatter(Tensor self, str op, int dim) -> Tensor");
  m.def("replica_all_to_all(Tensor self) -> Tensor");
  m.def("replica_broadcast(Tensor self, int source) -> Tensor");
  m.def("replica_chunk(Tensor self, int dim) -> Tensor");
  m.def("replica_place(Tensor self, int dim) -> Tensor");
}

TORCH_LIBRARY_IMPL(fuseline, Meta, m) {
  m.impl("replica_index", [](const at::Tensor& like) { return at::empty({}, like.options().dtype(at::kLong)); });
  m.impl("replica_all_reduce", [](const at::Tensor& self, c10::string_view) { return same_meta(self); });
  m.impl("replica_all_gather", [](const at::Tensor& self, int64_t dim) { return resized_meta(self, dim, true); });
  m.impl("replica_reduce_scatter", [](const at::Tensor& self, c10::string_view, int64_t dim) { return resized_meta(self, dim, false); });
  m.impl("replica_all_to_all", &same_meta);
  m.impl("replica_broadcast", [](const at::Tensor& self, int64_t) { return same_meta(self); });
  m.impl("replica_chunk", [](const at::Tensor& self, int64_t dim) { return resized_meta(self, dim, false); });
  m.impl("replica_place", [](const at::Tensor& self, int64_t dim) { return resized_meta(self, dim, true); });
}

// ----- data of each replica -----

// A tensor whose data on replica `i` is part `i` of the first dimension.
at::Tensor upload_each(const at::Tensor& parts) {
  const CallSite site;
  TORCH_CHECK(parts.dim() > 0 && parts.size(0) == count(),
              device_name(), ": the first dimension must have a part for each of the ", count(),
              " replicas, but the sizes are ", parts.sizes());
  TORCH_CHECK(recording() == 0, device_name(), ": a graph cannot upload data to replicas");
  const at::Tensor data = parts.resolve_conj().resolve_neg().contiguous();
  const auto dims = data.sizes().slice(1);
  const FltType type = type_of(data.scalar_type(), dims);
  Value value;
  check(flt_upload_replicas(&type, data.const_data_ptr(), data.nbytes(), value.out()));
  return make(std::move(value), data.scalar_type(), dims);
}

}  // namespace

at::Tensor download_each(const at::Tensor& tensor) {
  const CallSite site;
  TORCH_CHECK(is_ours(tensor),
              device_name(), ": expected a replicated tensor on the device ", device_name(), ", but got one on ",
              tensor.device());
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  std::vector<int64_t> sizes = plain.sizes().vec();
  sizes.insert(sizes.begin(), count());
  at::Tensor cpu = at::empty(sizes, plain.options().device(c10::kCPU));
  if (plain.numel() > 0) check(flt_download_replicas(read(plain).get(), cpu.mutable_data_ptr(), cpu.nbytes()));
  return cpu;
}

at::Scalar agreed(const at::Tensor& tensor) {
  const at::Tensor each = download_each(tensor).reshape({-1});
  for (int64_t replica = 1; replica < each.numel(); ++replica) {
    TORCH_CHECK(each[replica].equal(each[0]),
                device_name(), ": the host reads an integer or boolean that is not the same on all "
                "replicas: ",
                each[0].item(), " on replica 0 and ", each[replica].item(), " on replica ", replica,
                ". torch.", device_name(), ".per_replica returns all values; for a single one, combine them "
                "first with all_reduce or unshard");
  }
  return each[0].item();
}

namespace {

TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("replica_upload(Tensor parts) -> Tensor");
  m.def("replica_download(Tensor self) -> Tensor");
}
TORCH_LIBRARY_IMPL(fuseline, CPU, m) { m.impl("replica_upload", &upload_each); }
TORCH_LIBRARY_IMPL(fuseline, PrivateUse1, m) { m.impl("replica_download", &download_each); }

// ----- the backend -----

// The Work that Python gets for a call. It counts as complete.
class Done final : public c10d::Work {
 public:
  Done(OpType type, Tensors results) : Work(0, type), results_(std::move(results)) {}
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  Tensors result() override { return results_; }
  void synchronize() override {}
  void blockCurrentStream() override {}
  bool wait(std::chrono::milliseconds) override { return true; }
  void abort() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto type = c10::ListType::create(c10::TensorType::get());
    auto future = c10::make_intrusive<c10::ivalue::Future>(type, std::vector<c10::Device>{c10::Device(kDevice, 0)});
    // Storages would make the future record events, each of which would end a region. They are
    // omitted: there is one stream, so nothing has to wait.
    future->markCompleted(c10::IValue(results_), std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>>());
    return future;
  }

 private:
  const Tensors results_;
};

// The row's name for the reduction of an element type.
const char* combiner(const char* name, const at::Tensor& tensor, const ReduceOp& op) {
  const auto dtype = tensor.scalar_type();
  const bool is_bool = dtype == at::kBool, is_integer = c10::isIntegralType(dtype, true), is_complex = c10::isComplexType(dtype);
  const char* how = nullptr;
  switch (op.op_) {
    case ReduceOp::SUM: how = "sum"; break;
    case ReduceOp::AVG: how = is_bool ? nullptr : "avg"; break;
    case ReduceOp::PRODUCT: how = "product"; break;
    case ReduceOp::MIN: how = is_complex ? nullptr : "min"; break;
    case ReduceOp::MAX: how = is_complex ? nullptr : "max"; break;
    case ReduceOp::BAND: how = is_integer ? "and" : nullptr; break;
    case ReduceOp::BOR: how = is_integer ? "or" : nullptr; break;
    case ReduceOp::BXOR: how = is_integer ? "xor" : nullptr; break;
    default: break;
  }
  TORCH_CHECK(how != nullptr, device_name(), ": ", name, ": elements of type ", dtype,
              " of replicas cannot be reduced by op number ",
              static_cast<int>(op.op_), " of torch.distributed.ReduceOp");
  return how;
}

// Active while a collective is recorded. Gradients are up to the caller.
struct Scope {
  const CallSite site;
  const at::AutoDispatchBelowADInplaceOrView no_gradient;
};

class Replicas final : public c10d::Backend {
 public:
  Replicas() : Backend(0, static_cast<int>(count())) {}

  const std::string getBackendName() const override { return device_name(); }
  void setTimeout(std::chrono::milliseconds) override {}
  c10::intrusive_ptr<Options> getBackendOptions() override { return c10::make_intrusive<Options>(device_name()); }
  uint64_t getSequenceNumberForGroup() override { return 0; }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const Scope scope;
    const at::Tensor& tensor = only(tensors, "broadcast");
    tensor.copy_(of_replica(tensor, source("broadcast", opts.rootRank)));
    return done(OpType::BROADCAST, tensors);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const Scope scope;
    const at::Tensor& tensor = only(tensors, "all_reduce");
    tensor.copy_(all_reduced(tensor, combiner("all_reduce", tensor, opts.reduceOp)));
    return done(OpType::ALLREDUCE, tensors);
  }

  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    for (const at::Tensor& tensor : tensors) {
      Tensors one{tensor};
      allreduce(one, opts);
    }
    return done(OpType::ALLREDUCE_COALESCED, tensors);
  }

  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const Scope scope;
    const at::Tensor& tensor = only(tensors, "reduce");
    const at::Tensor sum = all_reduced(tensor, combiner("reduce", tensor, opts.reduceOp));
    tensor.copy_(at::where(index_like(tensor).eq(source("reduce", opts.rootRank)), sum, tensor));
    return done(OpType::REDUCE, tensors);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    const Scope scope;
    give(one_list(outputs, "all_gather"), gathered(only(inputs, "all_gather")), "all_gather");
    return done(OpType::ALLGATHER, outputs[0]);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    const Scope scope;
    check_pair("all_gather_into_tensor", input, output, size_);
    output.copy_(gathered(input).reshape(output.sizes()));
    return done(OpType::_ALLGATHER_BASE, {output});
  }

  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::AllgatherOptions& opts) override {
    TORCH_CHECK(outputs.size() == inputs.size(), device_name(),
                ": all_gather_into_tensor needs as many outputs as inputs");
    for (size_t i = 0; i < inputs.size(); ++i) _allgather_base(outputs[i], inputs[i], opts);
    return done(ALLGATHER_INTO_TENSOR_COALESCED, outputs);
  }

  c10::intrusive_ptr<c10d::Work> gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    const Scope scope;
    check_root("gather", opts.rootRank, "all_gather");
    const Tensors& results = one_list(outputs, "gather");
    const at::Tensor is_root = index_like(only(inputs, "gather")).eq(0);
    Tensors parts = gathered(inputs[0]).unbind();
    for (size_t i = 0; i < parts.size() && i < results.size(); ++i) parts[i] = at::where(is_root, parts[i], results[i]);
    give(results, at::stack(parts), "gather");
    return done(OpType::GATHER, results);
  }

  c10::intrusive_ptr<c10d::Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    const Scope scope;
    check_root("scatter", opts.rootRank, "broadcast and torch." + device_name() + ".shard");
    const at::Tensor& output = only(outputs, "scatter");
    const at::Tensor all = stacked(one_list(inputs, "scatter"), output, "scatter");
    output.copy_(own_chunk(of_replica(all, 0)).reshape(output.sizes()));
    return done(OpType::SCATTER, outputs);
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override {
    const Scope scope;
    const at::Tensor& output = only(outputs, "reduce_scatter");
    const at::Tensor all = stacked(one_list(inputs, "reduce_scatter"), output, "reduce_scatter");
    output.copy_(reduce_scattered(all, combiner("reduce_scatter", output, opts.reduceOp)).reshape(output.sizes()));
    return done(OpType::REDUCE_SCATTER, outputs);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& opts) override {
    const Scope scope;
    check_pair("reduce_scatter_tensor", output, input, size_);
    const char* how = combiner("reduce_scatter_tensor", output, opts.reduceOp);
    output.copy_(reduce_scattered(input.reshape({size_, output.numel()}), how).reshape(output.sizes()));
    return done(OpType::_REDUCE_SCATTER_BASE, {output});
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::ReduceScatterOptions& opts) override {
    TORCH_CHECK(outputs.size() == inputs.size(), device_name(),
                ": reduce_scatter_tensor needs as many outputs as inputs");
    for (size_t i = 0; i < inputs.size(); ++i) _reduce_scatter_base(outputs[i], inputs[i], opts);
    return done(REDUCE_SCATTER_TENSOR_COALESCED, outputs);
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits, const c10d::AllToAllOptions&) override {
    const Scope scope;
    check_pair("all_to_all_single", input, output, 1);
    for (const auto* splits : {&input_splits, &output_splits}) {
      const bool is_even = std::all_of(splits->begin(), splits->end(), [&](int64_t split) { return split == splits->front(); });
      TORCH_CHECK(is_even, device_name(), ": all_to_all_single: replicas exchange parts of equal sizes, not ", *splits,
                  ": pad them to the largest, or use a group of processes");
    }
    TORCH_CHECK(input.dim() > 0 && input.size(0) % size_ == 0, device_name(), ": all_to_all_single: ", size_,
                " replicas must divide the first dimension evenly, but the sizes are ", input.sizes());
    output.copy_(all_to_all(input.reshape({size_, input.numel() / size_})).reshape(output.sizes()));
    return done(OpType::ALLTOALL_BASE, {output});
  }

  c10::intrusive_ptr<c10d::Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    const Scope scope;
    TORCH_CHECK(!outputs.empty(), device_name(), ": all_to_all needs at least one output");
    give(outputs, all_to_all(stacked(inputs, outputs[0], "all_to_all")), "all_to_all");
    return done(OpType::ALLTOALL, outputs);
  }

  c10::intrusive_ptr<c10d::Work> send(Tensors&, int, int) override { no_pairs("send"); }
  c10::intrusive_ptr<c10d::Work> recv(Tensors&, int, int) override { no_pairs("recv"); }
  c10::intrusive_ptr<c10d::Work> recvAnysource(Tensors&, int) override { no_pairs("recv"); }

  // Waits for the devices, as programs that measure time expect of a barrier.
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    const CallSite site;
    check(flt_synchronize());
    return done(OpType::BARRIER, {});
  }

 private:
  static c10::intrusive_ptr<c10d::Work> done(OpType type, Tensors results) { return c10::make_intrusive<Done>(type, std::move(results)); }

  static void check_ours(const at::Tensor& tensor, const char* name) {
    TORCH_CHECK(is_ours(tensor), device_name(), ": ", name,
                " of replicas takes tensors on the device ", device_name(), ", not on ", tensor.device());
  }

  static const at::Tensor& only(const Tensors& tensors, const char* name) {
    TORCH_CHECK(tensors.size() == 1, device_name(), ": ", name, " takes one tensor, not ", tensors.size());
    check_ours(tensors[0], name);
    return tensors[0];
  }

  const Tensors& one_list(const std::vector<Tensors>& lists, const char* name) const {
    const size_t found = lists.size() == 1 ? lists[0].size() : 0;
    TORCH_CHECK(found == replicas(), device_name(), ": ", name, ": expected a list of ", size_,
                " tensors, one for each replica, but got ", found);
    return lists[0];
  }

  // Checks that the types match and that `more` has `times` as many elements as `less`.
  static void check_pair(const char* name, const at::Tensor& less, const at::Tensor& more, int64_t times) {
    check_ours(less, name);
    check_ours(more, name);
    TORCH_CHECK(less.scalar_type() == more.scalar_type(), device_name(), ": ", name,
                ": input and output have different types");
    TORCH_CHECK(less.numel() * times == more.numel(), device_name(), ": ", name, ": a tensor has ",
                more.numel(), " elements, but ",
                less.numel() * times, " are needed");
  }

  int64_t source(const char* name, int64_t rank) const {
    TORCH_CHECK(0 <= rank && rank < size_, device_name(), ": ", name, ": there are replicas 0 to ",
                size_ - 1, ", but no replica ", rank);
    return rank;
  }

  // Only rank 0, which is the program's rank, can have the list.
  static void check_root(const char* name, int64_t root, const std::string& instead) {
    TORCH_CHECK(root == 0, device_name(), ": ", name, ": replica ", root,
                " has no list of its own, because the program has rank 0: use ", instead);
  }

  [[noreturn]] static void no_pairs(const char* name) {
    TORCH_CHECK(false, device_name(), ": ", name,
                ": all replicas run the same program, so two of them cannot communicate without "
                "the others: use all_to_all_single,"
                " broadcast, or one process per device");
  }

  // The data of all replicas, in a new first dimension.
  static at::Tensor gathered(const at::Tensor& tensor) { return all_gathered(tensor.unsqueeze(0)); }

  // The list as one tensor. Each part has the sizes of `like`.
  at::Tensor stacked(const Tensors& list, const at::Tensor& like, const char* name) const {
    TORCH_CHECK(list.size() == replicas(), device_name(), ": ", name, ": ", list.size(), " inputs for ", size_,
                " replicas");
    for (const at::Tensor& part : list) {
      check_ours(part, name);
      TORCH_CHECK(part.sizes() == like.sizes() && part.scalar_type() == like.scalar_type(), device_name(), ": ", name,
                  ": replicas exchange tensors of one type and of equal sizes, not ", part.sizes(), " and ", like.sizes());
    }
    return at::stack(list);
  }

  void give(const Tensors& outputs, const at::Tensor& all, const char* name) const {
    TORCH_CHECK(outputs.size() == replicas(), device_name(), ": ", name, ": ", outputs.size(), " outputs for ", size_,
                " replicas");
    for (size_t i = 0; i < outputs.size(); ++i) {
      check_pair(name, outputs[i], all, size_);
      outputs[i].copy_(all.select(0, static_cast<int64_t>(i)).reshape(outputs[i].sizes()));
    }
  }
};

// Gives a group with one rank per replica its backend, which has no Python class.
void add_replicas(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  group->setBackend(kDevice, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<Replicas>());
}

TORCH_LIBRARY_FRAGMENT(fuseline, m) { m.def("add_replicas(__torch__.torch.classes.c10d.ProcessGroup group) -> ()", &add_replicas); }

}  // namespace
}  // namespace fuseline
