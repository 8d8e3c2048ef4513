// Collectives of torch.distributed for tensors of the device: gloo, in host memory, in program
// order.
//
//   call ─► operands are read, results promised ─► queue of the group ─► its thread: gloo, when the
//   operands are there ─► promises are kept
//           (the caller's thread, which goes on)   (in order)            (and threads of gloo's)
//
// When a call returns, the stream is done with it: its operands have ended a region, and its
// results are promised values of the engine (`flt_promise`). Later ops are recorded at once and run
// when the data arrives. Program order is thus the order of effects on every rank, and only reads
// wait.
//
// No XLA thread waits, as it would in a handler inside a region: peers that need what such a thread
// computes would deadlock once as many receives wait as there are threads. Nothing is compiled for
// a collective, and any PJRT device will do. A region never spans a collective, so ranks need not
// agree on what they fuse.
//
// Invariants:
// - DIST-1: one thread starts the calls of a group, in the order in which they were recorded. Gloo
//   matches calls by that order.
// - DIST-2: after it is recorded, a call holds no value; what it reads is already on its way to the
//   host. So values die where the program drops them, and regions do not depend on the network.
// - DIST-3: each result is promised once, and kept or broken once. An error, with the collective's
//   name, reaches readers of a result, `wait` and the next call of the group. A group that failed
//   is closed, so that its peers notice.
// - DIST-4: no thread here waits for the engine, and none holds Python's lock.

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <numeric>
#include <thread>

#include "c10d_names.h"
#include "collective.h"
#include "replicas.h"
#include "site.h"

namespace fuseline {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

// ----- types and reductions of gloo -----

int64_t bytes_of(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.dtype().itemsize()); }
at::Tensor empty_bytes(int64_t bytes) { return at::empty({bytes}, at::kByte); }
// Gloo lacks some element types, so data that is only moved is sent as bytes.
at::Tensor as_bytes(const at::Tensor& cpu) { return cpu.reshape({-1}).view(at::kByte); }

bool is_bitwise(const ReduceOp& op) { return op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR; }

// How gloo reduces an element type: the type on the wire and the op.
struct Reduction {
  at::ScalarType dtype;
  ReduceOp asked;
  int size;

  void check(const char* name) const {
    const bool is_number = dtype != at::kBool, is_integer = c10::isIntegralType(dtype, true);
    const bool is_ordered = asked == ReduceOp::MIN || asked == ReduceOp::MAX;
    const bool is_sum = asked == ReduceOp::SUM || asked == ReduceOp::AVG || asked == ReduceOp::PREMUL_SUM;
    const bool is_right = asked != ReduceOp::UNUSED && (is_integer || !is_bitwise(asked)) && (is_sum || !c10::isComplexType(dtype)) &&
                          (is_number || (asked != ReduceOp::AVG && asked != ReduceOp::PREMUL_SUM)) &&
                          !(is_ordered && dtype == at::kUInt64);
    TORCH_CHECK(is_right, device_name(), ": ", name, ": elements of type ", dtype, " cannot be reduced by op number ",
                static_cast<int>(asked.op_),
                " of torch.distributed.ReduceOp");
  }

  ReduceOp op() const {
    if (asked == ReduceOp::AVG || asked == ReduceOp::PREMUL_SUM) return ReduceOp::SUM;
    if (dtype != at::kBool || asked == ReduceOp::BXOR) return asked.op_;
    const bool is_all = asked == ReduceOp::PRODUCT || asked == ReduceOp::BAND || asked == ReduceOp::MIN;
    return is_all ? ReduceOp::MIN : ReduceOp::MAX;
  }

  // Half precision is summed in single precision and rounded once.
  at::ScalarType wire() const {
    if (c10::isReducedFloatingType(dtype)) return at::kFloat;
    switch (dtype) {
      case at::kBool: return at::kByte;
      case at::kShort:
      case at::kUInt16: return at::kInt;
      case at::kUInt32: return at::kLong;
      default: return dtype;
    }
  }

  // Flattens to one dimension, as memory that gloo may write to.
  at::Tensor to_wire(const at::Tensor& cpu) const {
    at::Tensor flat = cpu.reshape({-1});
    if (dtype == at::kComplexHalf) flat = flat.to(at::kComplexFloat);
    if (flat.is_complex()) flat = at::view_as_real(flat).reshape({-1});
    flat = dtype == at::kUInt64 ? flat.view(at::kLong) : c10::isComplexType(dtype) ? flat : flat.to(wire());
    return flat.contiguous();
  }

  // The operand of this rank. For a premultiplied sum it is the product, an op of the program.
  at::Tensor operand(const at::Tensor& tensor) const {
    if (asked != ReduceOp::PREMUL_SUM) return tensor;
    auto* factor = dynamic_cast<PreMulSumSupplement*>(asked.supplement_.get());
    TORCH_CHECK(factor != nullptr, device_name(), ": ReduceOp.PREMUL_SUM needs a factor");
    at::AutoDispatchBelowADInplaceOrView no_gradient;
    const at::Tensor multiple = factor->tensor_factor.defined() ? at::mul(tensor, factor->tensor_factor.reshape({}))
                                                                : at::mul(tensor, c10::Scalar(factor->double_factor));
    return multiple.to(dtype);
  }

  at::Tensor from_wire(at::Tensor flat) const {
    if (asked == ReduceOp::AVG) {
      flat = flat.is_floating_point() ? flat.div(size) : flat.div(size, "trunc");
    }
    if (dtype == at::kUInt64) return flat.view(at::kUInt64);
    if (dtype == at::kComplexHalf) return flat.to(at::kHalf);
    return c10::isComplexType(dtype) ? flat : flat.to(dtype);
  }
};

const at::Tensor& only(const Tensors& tensors, const char* name) {
  TORCH_CHECK(tensors.size() == 1, device_name(), ": ", name, " takes one tensor on each rank, not ", tensors.size());
  return tensors[0];
}

const Tensors& only(const std::vector<Tensors>& lists, const char* name) {
  TORCH_CHECK(lists.size() == 1, device_name(), ": ", name, " takes one list of tensors on each rank, not ",
              lists.size());
  return lists[0];
}

// ----- the backend -----

class Gloo final : public c10d::Backend {
 public:
  explicit Gloo(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), thread_([this] { run(); }) {}
  ~Gloo() override { end(); }

  const std::string getBackendName() const override { return device_name(); }
  void shutdown() override { end(); }
  void abort() override { group_->break_off("the group was aborted"); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    std::scoped_lock lock(group_->mutex);
    if (gloo_) gloo_->setTimeout(timeout);
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    std::scoped_lock lock(group_->mutex);
    return c10::make_intrusive<Options>(device_name(),
                                        gloo_ ? gloo_->getBackendOptions()->timeout : kBackendDefaultTimeout);
  }
  uint64_t getSequenceNumberForGroup() override { return number_; }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const at::Tensor& tensor = only(tensors, "broadcast");
    const bool is_root = opts.rootRank == rank_;
    return record("broadcast", OpType::BROADCAST, is_root ? tensors : Tensors(), is_root ? Tensors() : tensors,
                  [opts, is_root, bytes = bytes_of(tensor)](c10d::Backend& gloo, Tensors operands) {
                    Tensors data{is_root ? as_bytes(operands[0]) : empty_bytes(bytes)};
                    auto work = gloo.broadcast(data, opts);
                    return Started{work, [data, is_root] { return is_root ? Tensors() : data; }};
                  },
                  tensors);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const Reduction reduction = reduced(only(tensors, "all_reduce"), opts.reduceOp, "all_reduce");
    return record("all_reduce", OpType::ALLREDUCE, {reduction.operand(tensors[0])}, tensors, [opts, reduction](c10d::Backend& gloo, Tensors operands) {
      Tensors data{reduction.to_wire(operands[0])};
      c10d::AllreduceOptions how = opts;
      how.reduceOp = reduction.op();
      auto work = gloo.allreduce(data, how);
      return Started{work, [data, reduction] { return Tensors{reduction.from_wire(data[0])}; }};
    });
  }

  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return each(tensors.size(), OpType::ALLREDUCE_COALESCED, tensors, [&](size_t i) {
      Tensors one{tensors[i]};
      return allreduce(one, opts);
    });
  }

  c10::intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const Reduction reduction = reduced(only(tensors, "reduce"), opts.reduceOp, "reduce");
    const bool is_root = opts.rootRank == rank_;
    return record("reduce", OpType::REDUCE, {reduction.operand(tensors[0])}, is_root ? tensors : Tensors(),
                  [opts, reduction, is_root](c10d::Backend& gloo, Tensors operands) {
                    Tensors data{reduction.to_wire(operands[0])};
                    c10d::ReduceOptions how = opts;
                    how.reduceOp = reduction.op();
                    auto work = gloo.reduce(data, how);
                    return Started{work, [data, reduction, is_root] {
                                     return is_root ? Tensors{reduction.from_wire(data[0])} : Tensors();
                                   }};
                  },
                  tensors);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& opts) override {
    const Tensors& results = only(outputs, "all_gather");
    const int64_t bytes = bytes_of(only(inputs, "all_gather"));
    TORCH_CHECK(static_cast<int>(results.size()) == size_, device_name(), ": all_gather: ", results.size(),
                " outputs for ", size_, " ranks");
    for (const at::Tensor& result : results) check_bytes("all_gather", result, bytes);
    return record("all_gather", OpType::ALLGATHER, inputs, results, gathered(opts, bytes));
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    const int64_t bytes = bytes_of(input);
    check_bytes("all_gather_into_tensor", output, bytes * size_);
    Start start = gathered(opts, bytes);
    return record("all_gather_into_tensor", OpType::_ALLGATHER_BASE, {input}, {output}, [start](c10d::Backend& gloo, Tensors operands) {
      Started started = start(gloo, std::move(operands));
      return Started{started.work, [started] { return Tensors{at::cat(started.results())}; }};
    });
  }

  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::AllgatherOptions& opts) override {
    TORCH_CHECK(outputs.size() == inputs.size(), device_name(),
                ": all_gather_into_tensor needs as many outputs as inputs");
    return each(inputs.size(), ALLGATHER_INTO_TENSOR_COALESCED, outputs,
                [&](size_t i) { return _allgather_base(outputs[i], inputs[i], opts); });
  }

  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) override {
    Tensors all;
    for (const Tensors& list : outputs) {
      TORCH_CHECK(list.size() == inputs.size(),
                  device_name(), ": all_gather needs a list for each rank with as many tensors as there "
                  "are inputs");
      all.insert(all.end(), list.begin(), list.end());
    }
    return each(inputs.size(), OpType::ALLGATHER_COALESCED, all, [&](size_t i) {
      std::vector<Tensors> ranks(1);
      for (const Tensors& list : outputs) ranks[0].push_back(list[i]);
      Tensors one{inputs[i]};
      return allgather(ranks, one, opts);
    });
  }

  c10::intrusive_ptr<c10d::Work> gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    const int64_t bytes = bytes_of(only(inputs, "gather"));
    const bool is_root = opts.rootRank == rank_;
    const Tensors results = is_root ? only(outputs, "gather") : Tensors();
    const bool fits = !is_root || static_cast<int>(results.size()) == size_;
    TORCH_CHECK(fits, device_name(), ": gather: ", results.size(), " outputs for ", size_, " ranks");
    for (const at::Tensor& result : results) check_bytes("gather", result, bytes);
    return record("gather", OpType::GATHER, inputs, results, [opts, bytes, count = results.size()](c10d::Backend& gloo, Tensors operands) {
      Tensors data{as_bytes(operands[0])};
      std::vector<Tensors> parts(count > 0 ? 1 : 0);
      for (size_t i = 0; i < count; ++i) parts[0].push_back(empty_bytes(bytes));
      auto work = gloo.gather(parts, data, opts);
      return Started{work, [parts] { return parts.empty() ? Tensors() : parts[0]; }};
    });
  }

  // Only newer versions of PyTorch have it.
  c10::intrusive_ptr<c10d::Work> gather_into_tensor(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
    std::vector<Tensors> outputs;
    if (opts.rootRank == rank_) {
      check_bytes("gather_into_tensor", output, bytes_of(input) * size_);
      outputs.push_back(output.reshape({-1}).chunk(size_));
    }
    Tensors inputs{input};
    return gather(outputs, inputs, opts);
  }

  c10::intrusive_ptr<c10d::Work> scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override {
    const int64_t bytes = bytes_of(only(outputs, "scatter"));
    const Tensors operands = opts.rootRank == rank_ ? only(inputs, "scatter") : Tensors();
    const bool fits = opts.rootRank != rank_ || static_cast<int>(operands.size()) == size_;
    TORCH_CHECK(fits, device_name(), ": scatter: ", operands.size(), " inputs for ", size_, " ranks");
    for (const at::Tensor& operand : operands) check_bytes("scatter", operand, bytes);
    return record("scatter", OpType::SCATTER, operands, outputs, [opts, bytes](c10d::Backend& gloo, Tensors operands) {
      Tensors data{empty_bytes(bytes)};
      std::vector<Tensors> parts(operands.empty() ? 0 : 1);
      for (const at::Tensor& operand : operands) parts[0].push_back(as_bytes(operand));
      auto work = gloo.scatter(data, parts, opts);
      return Started{work, [data] { return data; }};
    });
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ReduceScatterOptions& opts) override {
    const at::Tensor& output = only(outputs, "reduce_scatter");
    Tensors operands = only(inputs, "reduce_scatter");
    TORCH_CHECK(static_cast<int>(operands.size()) == size_, device_name(), ": reduce_scatter: ", operands.size(),
                " inputs for ", size_, " ranks");
    check_bytes("reduce_scatter", output, bytes_of(operands[rank_]));
    const Reduction reduction = reduced(output, opts.reduceOp, "reduce_scatter");
    // Parts may differ in size: this rank's part begins after those before it.
    int64_t begin = 0;
    for (int i = 0; i < rank_; ++i) begin += operands[i].numel();
    for (at::Tensor& operand : operands) operand = reduction.operand(operand);
    return record("reduce_scatter", OpType::REDUCE_SCATTER, operands, outputs,
                  [reduction, begin, timeout = opts.timeout, numel = output.numel()](c10d::Backend& gloo, Tensors operands) {
                    Tensors parts;
                    for (const at::Tensor& operand : operands) parts.push_back(reduction.to_wire(operand));
                    return summed(gloo, at::cat(parts), reduction, timeout, begin, numel);
                  });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& opts) override {
    check_bytes("reduce_scatter_tensor", input, bytes_of(output) * size_);
    const Reduction reduction = reduced(output, opts.reduceOp, "reduce_scatter_tensor");
    return record("reduce_scatter_tensor", OpType::_REDUCE_SCATTER_BASE, {reduction.operand(input)}, {output},
                  [reduction, timeout = opts.timeout, rank = rank_, numel = output.numel()](c10d::Backend& gloo, Tensors operands) {
                    return summed(gloo, reduction.to_wire(operands[0]), reduction, timeout, rank * numel, numel);
                  });
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const c10d::ReduceScatterOptions& opts) override {
    TORCH_CHECK(outputs.size() == inputs.size(), device_name(),
                ": reduce_scatter_tensor needs as many outputs as inputs");
    return each(inputs.size(), REDUCE_SCATTER_TENSOR_COALESCED, outputs,
                [&](size_t i) { return _reduce_scatter_base(outputs[i], inputs[i], opts); });
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override {
    TORCH_CHECK(output.dim() > 0 && input.dim() > 0, device_name(),
                ": all_to_all_single: a tensor has no first dimension to split");
    TORCH_CHECK(output.scalar_type() == input.scalar_type(), device_name(),
                ": all_to_all_single: input and output have different types");
    // Rows of bytes.
    auto row = [](const at::Tensor& tensor) {
      int64_t bytes = static_cast<int64_t>(tensor.dtype().itemsize());
      for (int64_t size : tensor.sizes().slice(1)) bytes *= size;
      return bytes;
    };
    const std::array<int64_t, 2> from{input.size(0), row(input)}, to{output.size(0), row(output)};
    return record("all_to_all_single", OpType::ALLTOALL_BASE, {input}, {output},
                  [opts, from, to, output_splits, input_splits](c10d::Backend& gloo, Tensors operands) mutable {
                    at::Tensor sent = as_bytes(operands[0]).reshape(from), got = at::empty(to, at::kByte);
                    auto work = gloo.alltoall_base(got, sent, output_splits, input_splits, opts);
                    return Started{work, [sent, got] { return Tensors{got}; }};
                  });
  }

  c10::intrusive_ptr<c10d::Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    TORCH_CHECK(static_cast<int>(outputs.size()) == size_ && static_cast<int>(inputs.size()) == size_,
                device_name(), ": all_to_all needs one input and one output for each of the ", size_, " ranks");
    std::vector<int64_t> to, from;
    for (const at::Tensor& output : outputs) to.push_back(bytes_of(output));
    for (const at::Tensor& input : inputs) from.push_back(bytes_of(input));
    return record("all_to_all", OpType::ALLTOALL, inputs, outputs, [opts, to, from](c10d::Backend& gloo, Tensors operands) mutable {
      Tensors parts;
      for (const at::Tensor& operand : operands) parts.push_back(as_bytes(operand));
      at::Tensor sent = at::cat(parts), got = empty_bytes(std::accumulate(to.begin(), to.end(), int64_t{0}));
      // Gloo consumes the lists.
      std::vector<int64_t> sizes = to;
      auto work = gloo.alltoall_base(got, sent, sizes, from, opts);
      return Started{work, [sent, got, to] { return got.split_with_sizes(to); }};
    });
  }

  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int to, int tag) override {
    only(tensors, "send");
    return record("send", OpType::SEND, tensors, {}, [to, tag](c10d::Backend& gloo, Tensors operands) {
      Tensors data{as_bytes(operands[0])};
      return Started{gloo.send(data, to, tag), [data] { return Tensors(); }};
    });
  }

  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int from, int tag) override {
    return record("recv", OpType::RECV, {}, tensors, [from, tag, bytes = bytes_of(only(tensors, "recv"))](c10d::Backend& gloo, Tensors) {
      Tensors data{empty_bytes(bytes)};
      return Started{gloo.recv(data, from, tag), [data] { return data; }};
    });
  }

  c10::intrusive_ptr<c10d::Work> recvAnysource(Tensors& tensors, int tag) override {
    return record("recv", OpType::RECVANYSOURCE, {}, tensors, [tag, bytes = bytes_of(only(tensors, "recv"))](c10d::Backend& gloo, Tensors) {
      Tensors data{empty_bytes(bytes)};
      return Started{gloo.recvAnysource(data, tag), [data] { return data; }};
    });
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override {
    c10d::BarrierOptions how = opts;
    how.device_ids.clear();
    how.device = std::nullopt;
    check(flt_flush());
    return record("barrier", OpType::BARRIER, {}, {}, [how](c10d::Backend& gloo, Tensors) {
      return Started{gloo.barrier(how), [] { return Tensors(); }};
    });
  }

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool all_ranks) override {
    auto work = record("monitored_barrier", OpType::BARRIER, {}, {}, [opts, all_ranks](c10d::Backend& gloo, Tensors) {
      gloo.monitoredBarrier(opts, all_ranks);
      return Started{nullptr, [] { return Tensors(); }};
    });
    work->wait(kNoTimeout);
  }

 private:
  Reduction reduced(const at::Tensor& tensor, const ReduceOp& op, const char* name) const {
    Reduction reduction{tensor.scalar_type(), op, size_};
    reduction.check(name);
    return reduction;
  }

  static void check_bytes(const char* name, const at::Tensor& tensor, int64_t bytes) {
    TORCH_CHECK(bytes_of(tensor) == bytes, device_name(), ": ", name, ": a tensor has ", bytes_of(tensor),
                " bytes, but ", bytes, " are needed");
  }

  // Gathers one part from each rank.
  Start gathered(const c10d::AllgatherOptions& opts, int64_t bytes) const {
    return [opts, bytes, size = size_](c10d::Backend& gloo, Tensors operands) {
      at::Tensor mine = as_bytes(operands[0]), all = empty_bytes(bytes * size);
      auto work = gloo._allgather_base(all, mine, opts);
      return Started{work, [mine, all, size] { return all.reshape({size, -1}).unbind(); }};
    };
  }

  // One part of the reduction over all ranks.
  static Started summed(c10d::Backend& gloo, at::Tensor flat, const Reduction& reduction, std::chrono::milliseconds timeout, int64_t begin,
                        int64_t numel) {
    const int64_t parts = c10::isComplexType(reduction.dtype) ? 2 : 1;
    Tensors data{std::move(flat)};
    c10d::AllreduceOptions how;
    how.reduceOp = reduction.op();
    how.timeout = timeout;
    auto work = gloo.allreduce(data, how);
    return Started{work, [data, reduction, begin, numel, parts] {
                     return Tensors{reduction.from_wire(data[0].narrow(0, begin * parts, numel * parts))};
                   }};
  }

  // Several calls as one.
  template <typename F>
  c10::intrusive_ptr<c10d::Work> each(size_t count, OpType type, const Tensors& results, F one) {
    auto all = c10::make_intrusive<Recorded>(rank_, type, results, number_, false);
    for (size_t i = 0; i < count; ++i) {
      auto work = one(i);
      for (const auto& part : static_cast<Recorded*>(work.get())->parts()) all->add(part);
    }
    return all;
  }

  c10::intrusive_ptr<c10d::Work> record(const char* name, OpType type, const Tensors& operands, const Tensors& results, Start start,
                                        const std::optional<Tensors>& shown = std::nullopt);
  void run();
  void begin(c10d::Backend& gloo, const std::shared_ptr<Call>& call);
  void end();

  const std::shared_ptr<Group> group_ = std::make_shared<Group>();
  // Used by the group's thread, which drops it when the group is broken. Guarded by the group's
  // lock.
  c10::intrusive_ptr<c10d::Backend> gloo_;
  // Serializes the recording of calls.
  std::mutex recording_;
  uint64_t number_ = 0;
  std::thread thread_;
};

c10::intrusive_ptr<c10d::Work> Gloo::record(const char* name, OpType type, const Tensors& operands, const Tensors& results, Start start,
                                            const std::optional<Tensors>& shown) {
  const CallSite site;
  TORCH_CHECK(replicas() == 1, device_name(), ": ", name, " between processes with ", replicas(),
              " replicas each would transfer only the data of replica 0: use the group of "
              "torch.", device_name(), ".replica_group(), or one replica per process");
  for (const Tensors* list : {&operands, &results}) {
    for (const at::Tensor& tensor : *list) {
      TORCH_CHECK(is_ours(tensor), device_name(), ": ", name,
                  ": expected a tensor on the device ", device_name(), ", but got one on ", tensor.device(),
                  "; init_process_group(\"cpu:gloo,", device_name(), ":", device_name(), "\") makes a group for both devices");
    }
  }
  std::scoped_lock one_at_a_time(recording_);
  {
    std::scoped_lock lock(group_->mutex);
    TORCH_CHECK_WITH(DistBackendError, group_->broken.empty(), device_name(), ": ", name,
                     ": the group failed earlier: ", group_->broken);
    TORCH_CHECK(!group_->is_ending, device_name(), ": ", name, ": the group was shut down");
  }
  ++number_;
  auto call = std::make_shared<Call>();
  call->name = c10::str(name, " (call ", number_, " of group ", pg_uid_.empty() ? "default" : pg_uid_, ", rank ", rank_, " of ", size_, ")");
  call->is_between_two = type == OpType::SEND || type == OpType::RECV || type == OpType::RECVANYSOURCE;
  call->start = std::move(start);
  std::vector<Value> read_values, promised(results.size());
  for (const at::Tensor& operand : operands) {
    const at::Tensor plain = operand.resolve_conj().resolve_neg();
    call->operands.push_back(at::empty(plain.sizes(), at::TensorOptions(plain.scalar_type())));
    read_values.push_back(plain.numel() > 0 ? read(plain) : Value());
  }
  call->missing = operands.size();
  for (size_t i = 0; i < results.size(); ++i) {
    TORCH_CHECK(!results[i].is_conj() && !results[i].is_neg(), device_name(), ": ", name,
                ": a result must not be a conjugate or negative view");
    call->results.emplace_back(results[i].scalar_type(), results[i].sizes(), promised[i]);
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    auto ear = std::make_unique<Ear>(group_, call, i);
    if (read_values[i]) {
      check(flt_fetch(read_values[i].get(), &heard, ear.get()));
      ear.release();
    } else {
      heard(ear.release(), true, nullptr, 0);
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].numel() > 0) write(results[i], std::move(promised[i]));
  }
  bool is_broken;
  {
    std::scoped_lock lock(group_->mutex);
    is_broken = !group_->broken.empty();
    if (!is_broken) group_->queue.push_back(call);
    group_->changed.notify_all();
  }
  if (is_broken) group_->fail(*call, "the group failed earlier");
  auto work = c10::make_intrusive<Recorded>(rank_, type, shown.value_or(results), number_, type == OpType::BARRIER);
  work->add(call->progress);
  return work;
}

// The loop of the group's thread, until the group is shut down.
void Gloo::run() {
  Group& group = *group_;
  std::unique_lock lock(group.mutex);
  for (;;) {
    auto is_ready = [&] { return !group.queue.empty() && group.queue.front()->missing == 0; };
    group.changed.wait(lock, [&] {
      return is_ready() || (!group.broken.empty() && (gloo_ || !group.queue.empty())) || (group.is_ending && group.queue.empty());
    });
    if (!group.broken.empty()) {
      // First fail the calls that will not start, then disconnect from the peers.
      std::deque<std::shared_ptr<Call>> left = std::exchange(group.queue, {});
      auto gloo = std::exchange(gloo_, nullptr);
      const std::string why = "the group failed earlier: " + group.broken;
      lock.unlock();
      for (const auto& call : left) group.fail(*call, why);
      gloo.reset();
      lock.lock();
    } else if (is_ready()) {
      std::shared_ptr<Call> call = group.queue.front();
      group.queue.pop_front();
      auto gloo = gloo_;
      lock.unlock();
      if (call->wrong.empty()) {
        begin(*gloo, call);
      } else {
        group.fail(*call, "an operand of this rank failed: " + call->wrong);
      }
      gloo.reset();
      lock.lock();
    }
    if (group.is_ending && group.queue.empty()) return;
  }
}

void Gloo::begin(c10d::Backend& gloo, const std::shared_ptr<Call>& call) {
  try {
    Started started = call->start(gloo, std::move(call->operands));
    std::shared_ptr<Group> group = group_;
    if (!started.work) {
      group->finish(*call, started, -1);
    } else if (call->is_between_two) {
      {
        std::scoped_lock lock(group->mutex);
        group->between_two.push_back(started.work);
      }
      std::thread([group, call, started] {
        try {
          if (started.work->wait(kNoTimeout)) {
            group->finish(*call, started, call->results.empty() ? -1 : started.work->sourceRank());
          } else {
            group->fail(*call, "the operation was aborted");
          }
        } catch (const std::exception& error) {
          group->fail(*call, what(error));
        }
        std::scoped_lock lock(group->mutex);
        auto& begun = group->between_two;
        begun.erase(std::find(begun.begin(), begun.end(), started.work));
        group->changed.notify_all();
      }).detach();
    } else {
      started.work->getFuture()->addCallback([group, call, started](c10::ivalue::Future& future) {
        if (future.hasError()) {
          group->fail(*call, future.tryRetrieveErrorMessage());
        } else {
          group->finish(*call, started, -1);
        }
      });
    }
  } catch (const std::exception& error) {
    group_->fail(*call, what(error));
  }
}

// Completes everything that was recorded.
void Gloo::end() {
  {
    std::scoped_lock lock(group_->mutex);
    group_->is_ending = true;
    group_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  {
    std::unique_lock lock(group_->mutex);
    group_->changed.wait(lock, [&] { return group_->between_two.empty(); });
  }
  // Waits for what it has started.
  gloo_.reset();
}

// Adds a backend for this device to a group, which is how Python gets it: the backend has no Python
// class. The group's CPU backend is a gloo group of one rank, which is asked to create that of all
// ranks. One created in Python would need Python's lock to be destroyed, on whatever thread that
// happens (DIST-4).
void add_backend(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  auto alone = group->getBackend(c10::DeviceType::CPU);
  auto gloo = alone->merge(group->getStore(), alone->getBackendOptions(), group->getRank(), group->getSize());
  group->setBackend(kDevice, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<Gloo>(std::move(gloo)));
}

TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("add_backend(__torch__.torch.classes.c10d.ProcessGroup group) -> ()", &add_backend);
}

}  // namespace
}  // namespace fuseline
