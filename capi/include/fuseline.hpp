/*
 * Fuseline for C++ (17 or later): the functions of fuseline.h, with owners for their objects and
 * exceptions for their errors.
 *
 * Everything is in this header; link with libfuseline. Owners are as thread-safe as what they own;
 * see fuseline.h. An exception must not leave a callback, so a callback that throws ends the
 * program.
 */
#ifndef FUSELINE_HPP
#define FUSELINE_HPP

#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuseline.h"

namespace fuseline {

/// The error of a failed call.
class Error : public std::runtime_error {
 public:
  /// Takes ownership of the error.
  explicit Error(fuseline_error *error) : std::runtime_error(fuseline_error_message(error)) {
    const fuseline_error_info info = fuseline_error_get(error);
    code_ = info.code;
    stage_ = info.stage;
    retryable_ = info.retryable != 0;
    op_ = info.op ? info.op : "";
    site_ = info.site ? info.site : "";
    region_ = info.region ? info.region : "";
    fuseline_error_free(error);
  }

  /// The kind of error (FUSELINE_TIMEOUT and others).
  fuseline_code code() const noexcept { return code_; }
  /// The stage of the op at which it occurred.
  fuseline_stage stage() const noexcept { return stage_; }
  /// Whether a retry may succeed.
  bool retryable() const noexcept { return retryable_; }
  /// The op concerned, or empty. The next two may be empty too.
  const std::string &op() const noexcept { return op_; }
  /// The call site of that op.
  const std::string &site() const noexcept { return site_; }
  /// The region concerned.
  const std::string &region() const noexcept { return region_; }

 private:
  fuseline_code code_;
  fuseline_stage stage_;
  bool retryable_;
  std::string op_, site_, region_;
};

/// Throws the error of a failed call.
inline void check(fuseline_error *error) {
  if (error) throw Error(error);
}

namespace detail {

/// Owns an object of the C interface and frees it.
template <typename T, void (*Free)(T *)>
struct Deleter {
  void operator()(T *owned) const noexcept { Free(owned); }
};
template <typename T, void (*Free)(T *)>
using Owner = std::unique_ptr<T, Deleter<T, Free>>;

template <typename F>
void free_function(void *user) {
  delete static_cast<F *>(user);
}

}  // namespace detail

/// Element type and shape.
inline fuseline_type type(fuseline_dtype dtype, const std::vector<std::uint64_t> &dims = {}) {
  if (dims.size() > FUSELINE_MAX_RANK) throw std::invalid_argument("a tensor has at most FUSELINE_MAX_RANK dimensions");
  fuseline_type type{};
  type.dtype = dtype;
  type.rank = static_cast<std::uint32_t>(dims.size());
  std::memcpy(type.dims, dims.data(), dims.size() * sizeof(std::uint64_t));
  return type;
}

/// The element type of a C++ type.
template <typename T>
constexpr fuseline_dtype dtype_of() {
  static_assert(std::is_arithmetic_v<T>, "a number, or bool");
  if constexpr (std::is_same_v<T, bool>) return FUSELINE_BOOL;
  if constexpr (std::is_floating_point_v<T>) {
    static_assert(sizeof(T) <= 8, "float or double");
    return sizeof(T) == 4 ? FUSELINE_F32 : FUSELINE_F64;
  }
  constexpr bool is_signed = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1: return is_signed ? FUSELINE_I8 : FUSELINE_U8;
    case 2: return is_signed ? FUSELINE_I16 : FUSELINE_U16;
    case 4: return is_signed ? FUSELINE_I32 : FUSELINE_U32;
    default: return is_signed ? FUSELINE_I64 : FUSELINE_U64;
  }
}

/// Named values: attributes of an op, configuration of a handler call. Copies its inputs.
class AttrList {
 public:
  AttrList &integer(const char *name, std::int64_t value) {
    return add(name, FUSELINE_ATTR_INTEGER, 1).value.integer = value, *this;
  }
  AttrList &real(const char *name, double value) { return add(name, FUSELINE_ATTR_REAL, 1).value.real = value, *this; }
  AttrList &flag(const char *name, bool value) { return add(name, FUSELINE_ATTR_FLAG, 1).value.integer = value, *this; }
  AttrList &dtype(const char *name, fuseline_dtype value) {
    return add(name, FUSELINE_ATTR_DTYPE, 1).value.integer = value, *this;
  }
  AttrList &text(const char *name, const std::string &value) {
    return add(name, FUSELINE_ATTR_TEXT, 1).value.text = texts_.emplace_back(value).c_str(), *this;
  }
  AttrList &integers(const char *name, std::vector<std::int64_t> values) {
    const auto &kept = integers_.emplace_back(std::move(values));
    return add(name, FUSELINE_ATTR_INTEGERS, kept.size()).value.integers = kept.data(), *this;
  }
  AttrList &flags(const char *name, std::vector<std::uint8_t> values) {
    const auto &kept = flags_.emplace_back(std::move(values));
    return add(name, FUSELINE_ATTR_FLAGS, kept.size()).value.flags = kept.data(), *this;
  }
  AttrList &texts(const char *name, const std::vector<std::string> &values) {
    auto &kept = lists_.emplace_back();
    for (const auto &value : values) kept.push_back(texts_.emplace_back(value).c_str());
    return add(name, FUSELINE_ATTR_TEXTS, kept.size()).value.texts = kept.data(), *this;
  }
  AttrList &tensor(const char *name, const fuseline_tensor &value) {
    const auto *data = reinterpret_cast<const char *>(value.data);
    const auto &kept = texts_.emplace_back(data, value.size);
    auto &tensor = tensors_.emplace_back(value);
    tensor.data = reinterpret_cast<const std::uint8_t *>(kept.data());
    return add(name, FUSELINE_ATTR_TENSOR, 1).value.tensor = &tensor, *this;
  }
  AttrList &attrs(const char *name, AttrList values) {
    const auto &kept = groups_.emplace_back(std::move(values));
    return add(name, FUSELINE_ATTR_ATTRS, kept.size()).value.attrs = kept.data(), *this;
  }

  AttrList() = default;
  AttrList(AttrList &&) = default;
  AttrList &operator=(AttrList &&) = default;
  // It contains pointers to its own members.
  AttrList(const AttrList &) = delete;
  AttrList &operator=(const AttrList &) = delete;

  const fuseline_attr *data() const noexcept { return all_.data(); }
  std::size_t size() const noexcept { return all_.size(); }

 private:
  fuseline_attr &add(const char *name, fuseline_attr_kind kind, std::size_t count) {
    fuseline_attr attr{};
    attr.name = texts_.emplace_back(name).c_str();
    attr.kind = kind;
    attr.count = static_cast<std::uint32_t>(count);
    return all_.emplace_back(attr);
  }

  // Lists whose elements keep their addresses when the list is moved.
  std::vector<fuseline_attr> all_;
  std::list<std::string> texts_;
  std::list<std::vector<std::int64_t>> integers_;
  std::list<std::vector<std::uint8_t>> flags_;
  std::list<std::vector<const char *>> lists_;
  std::list<fuseline_tensor> tensors_;
  std::list<AttrList> groups_;
};

/// An op of the table with its attributes. Cheap to copy; make it once and record it many times.
class Op {
 public:
  explicit Op(const char *name) { check(fuseline_op_find(name, &op_)); }
  Op(const char *name, const AttrList &attrs) : Op(name) {
    fuseline_attrs *made = nullptr;
    check(fuseline_attrs_new(op_, attrs.data(), attrs.size(), &made));
    attrs_.reset(made, fuseline_attrs_free);
  }

  fuseline_op number() const noexcept { return op_; }
  const fuseline_attrs *attrs() const noexcept { return attrs_.get(); }

 private:
  fuseline_op op_ = 0;
  std::shared_ptr<fuseline_attrs> attrs_;
};

/// A call site, such as "model.py:12". It is never freed.
inline const fuseline_site *site(const std::string &text) {
  const fuseline_site *site = nullptr;
  check(fuseline_site_of(text.c_str(), &site));
  return site;
}

/// The configuration of an engine.
class Config {
 public:
  Config() {
    fuseline_config *config = nullptr;
    check(fuseline_config_new(&config));
    config_.reset(config);
  }

  /// Sets an option; fuseline_config_settings() lists them.
  Config &set(const std::string &name, const std::string &value) {
    return check(fuseline_config_set(get(), name.c_str(), value.c_str())), *this;
  }
  /// Options of the plugin's client.
  Config &client_options(const AttrList &options) {
    for (std::size_t i = 0; i < options.size(); i++) check(fuseline_config_client_option(get(), &options.data()[i]));
    return *this;
  }
  /// Flags of XLA.
  Config &compiler_flags(const AttrList &flags) {
    for (std::size_t i = 0; i < flags.size(); i++) check(fuseline_config_compiler_flag(get(), &flags.data()[i]));
    return *this;
  }
  /// Calls `tell` with the name of each event and a sentence, on any thread, possibly concurrently.
  Config &on_log(std::function<void(const char *, const char *)> tell) {
    using Tell = std::function<void(const char *, const char *)>;
    auto call = [](void *user, const char *name, const char *text) noexcept { (*static_cast<Tell *>(user))(name, text); };
    check(fuseline_config_on_log(get(), call, new Tell(std::move(tell)), detail::free_function<Tell>));
    return *this;
  }

  fuseline_config *get() const noexcept { return config_.get(); }

 private:
  detail::Owner<fuseline_config, fuseline_config_free> config_;
};

/// A value: an id with one reference, which the destructor releases. A copy has its own reference.
class Value {
 public:
  Value() = default;
  /// Takes ownership of a reference.
  Value(std::shared_ptr<fuseline_session> session, fuseline_value id) : session_(std::move(session)), id_(id) {}
  Value(const Value &other) : session_(other.session_), id_(other.id_) {
    if (id_) check(fuseline_retain(session_.get(), id_));
  }
  Value(Value &&other) noexcept : session_(std::move(other.session_)), id_(std::exchange(other.id_, 0)) {}
  Value &operator=(Value other) noexcept {
    std::swap(session_, other.session_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Value() {
    // This fails only in a forked child, which has nothing to release.
    if (id_) fuseline_error_free(fuseline_release(session_.get(), id_));
  }

  fuseline_value id() const noexcept { return id_; }

  /// Element type and shape.
  fuseline_type type() const {
    fuseline_type type;
    check(fuseline_type_of(session_.get(), id_, &type));
    return type;
  }
  /// In-place write: the id gets another value of its type.
  void replace(const Value &with) { check(fuseline_replace(session_.get(), id_, with.id_)); }
  /// The number of in-place writes.
  std::uint64_t version() const {
    std::uint64_t version = 0;
    check(fuseline_version_of(session_.get(), id_, &version));
    return version;
  }
  /// Waits until it is computed.
  void wait(std::uint64_t nanoseconds = UINT64_MAX) const { check(fuseline_wait(session_.get(), id_, nanoseconds)); }
  /// Its elements. Waits until it is computed.
  template <typename T>
  std::vector<T> read() const {
    const fuseline_type type = this->type();
    if (type.dtype != dtype_of<T>()) {
      throw std::invalid_argument(std::string("the value has elements of type ") +
                                  fuseline_dtype_name(type.dtype));
    }
    static_assert(!std::is_same_v<T, bool>, "read bool as std::uint8_t by fuseline_read");
    std::vector<T> elements(fuseline_type_size(&type) / sizeof(T));
    check(fuseline_read(session_.get(), id_, reinterpret_cast<std::uint8_t *>(elements.data()), elements.size() * sizeof(T)));
    return elements;
  }
  /// Calls `tell`, on any thread, with null when the data is there, or with the error.
  void on_ready(std::function<void(const fuseline_error *)> tell) const {
    using Tell = std::function<void(const fuseline_error *)>;
    auto call = [](void *user, fuseline_value, const fuseline_error *error) noexcept { (*static_cast<Tell *>(user))(error); };
    check(fuseline_on_ready(session_.get(), id_, call, new Tell(std::move(tell)), detail::free_function<Tell>));
  }

 private:
  std::shared_ptr<fuseline_session> session_;
  fuseline_value id_ = 0;
};

/// An operand: any value, for the duration of the call.
struct Operand {
  Operand(const Value &value) : id(value.id()) {}  // NOLINT: values convert implicitly.
  fuseline_value id;
};

/// An engine with a stream to record on. Copies share both.
class Session {
 public:
  explicit Session(const Config &config = Config()) {
    fuseline_session *session = nullptr;
    check(fuseline_session_open(config.get(), &session));
    session_.reset(session, fuseline_session_close);
    check(fuseline_stream_open(session, &stream_));
  }

  fuseline_session *get() const noexcept { return session_.get(); }
  /// The stream of this session's functions.
  fuseline_stream stream() const noexcept { return stream_; }
  /// The same engine with a new stream.
  Session with_new_stream() const {
    Session other(*this);
    check(fuseline_stream_open(get(), &other.stream_));
    return other;
  }

  /// A value made from elements, which are copied.
  template <typename T>
  Value upload(const std::vector<T> &elements, const std::vector<std::uint64_t> &dims) const {
    static_assert(!std::is_same_v<T, bool>, "upload bool as std::uint8_t by fuseline_upload");
    fuseline_tensor tensor{};
    tensor.type = fuseline::type(dtype_of<T>(), dims);
    tensor.data = reinterpret_cast<const std::uint8_t *>(elements.data());
    tensor.size = elements.size() * sizeof(T);
    return made([&](fuseline_value *id) { return fuseline_upload(get(), stream_, &tensor, id); });
  }
  /// A lifted scalar.
  Value scalar(fuseline_dtype dtype, double number) const {
    return made([&](fuseline_value *id) { return fuseline_scalar(get(), stream_, dtype, number, id); });
  }

  /// Records an op and returns all of its results.
  std::vector<Value> record_all(const Op &op, std::initializer_list<Operand> operands,
                                const fuseline_site *site = nullptr) const {
    std::vector<fuseline_value> ids;
    for (const Operand &operand : operands) ids.push_back(operand.id);
    fuseline_call call{};
    call.struct_size = sizeof call;
    call.op = op.number();
    call.attrs = op.attrs();
    call.operands = ids.data();
    call.num_operands = ids.size();
    call.site = site;
    // More results than any op of the table has, except for ops that return their operands.
    std::vector<fuseline_value> results(16 + ids.size());
    std::size_t count = 0;
    check(fuseline_record(get(), stream_, &call, results.data(), nullptr, results.size(), &count));
    if (count > results.size()) throw std::length_error("the op has more results than this function has room for");
    std::vector<Value> values;
    for (std::size_t i = 0; i < count; i++) values.emplace_back(session_, results[i]);
    return values;
  }
  /// Records an op with one result.
  Value record(const Op &op, std::initializer_list<Operand> operands,
               const fuseline_site *site = nullptr) const {
    return std::move(record_all(op, operands, site).at(0));
  }

  /// Ends the region that is being recorded. Does not wait.
  void flush() const { check(fuseline_flush(get(), stream_)); }
  /// Waits until everything that was recorded is computed.
  void synchronize(std::uint64_t nanoseconds = UINT64_MAX) const { check(fuseline_synchronize(get(), stream_, nanoseconds)); }

  /// The value of a counter, or 0 if there is no such counter.
  std::uint64_t counter(const std::string &name) const {
    std::size_t count = 0;
    check(fuseline_counters(get(), nullptr, 0, &count));
    std::vector<fuseline_counter> all(count);
    check(fuseline_counters(get(), all.data(), all.size(), &count));
    for (const auto &one : all)
      if (name == one.name) return one.value;
    return 0;
  }

 private:
  template <typename F>
  Value made(F make) const {
    fuseline_value id = 0;
    check(make(&id));
    return Value(session_, id);
  }

  std::shared_ptr<fuseline_session> session_;
  fuseline_stream stream_ = 0;
};

}  // namespace fuseline

#endif  // FUSELINE_HPP
