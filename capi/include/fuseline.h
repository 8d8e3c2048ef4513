/*
 * Fuseline for front ends in any language: eager tensor ops that are recorded, fused, compiled by
 * XLA and run asynchronously on any device that has a PJRT plugin.
 *
 * Errors. Every function that can fail returns a fuseline_error *, which is null on success. The
 * caller owns the error, reads it (fuseline_error_message and others) and frees it
 * (fuseline_error_free). A function that fails has changed only what its description says, and has
 * written no results.
 *
 * Pointers. A pointer that is not null points to what its type says, for the duration of the call.
 * Texts are UTF-8 and end with a zero byte. Null is an error where a value is required. Arguments
 * are not used after the call, except for the user data of callbacks and the memory of
 * fuseline_upload_shared.
 *
 * Ids. Values, streams and functions are numbers that are never reused. An id that was released or
 * never existed is an error in every call. Ids of values count references: release each one that
 * you get.
 *
 * Threads. Any number of threads may use a session at once. Threads may share attributes, bodies
 * and sites as long as none frees them. A config is for one thread at a time. If several threads
 * record on one stream, the ops of each thread keep their order and those of different threads
 * interleave.
 *
 * Callbacks run on any thread. They must not throw or jump out, and must not wait for the engine:
 * calls that would wait fail with FUSELINE_INVALID. The user data of a callback (user) is freed by
 * the function that is passed with it, once, after the last call, also if the function that took
 * it fails.
 *
 * Forks. In a child process every call on an engine of its parent fails with FUSELINE_FORKED.
 */

#ifndef FUSELINE_H
#define FUSELINE_H

/* Made from capi/src by `cargo test -p fuseline-capi`: change that, not this. */

#include <stddef.h>
#include <stdint.h>

// Version of this interface in the header that a program was compiled with: a thousand times the
// major version plus the minor version. The library has the same major version and at least the
// same minor version.
#define FUSELINE_ABI_VERSION 1

// The largest number of results of a handler call.
#define FUSELINE_MAX_HANDLER_RESULTS 64

// The largest number of dimensions of a tensor.
#define FUSELINE_MAX_RANK 16

// Checked attributes of an op. They may be recorded any number of times, on any thread.
typedef struct fuseline_attrs fuseline_attrs;

// A finished body of an op, which uses no values from outside.
typedef struct fuseline_body fuseline_body;

// The configuration of an engine. Not thread-safe.
typedef struct fuseline_config fuseline_config;

// An error. Every call that can fail returns one, or null on success. The caller owns it.
typedef struct fuseline_error fuseline_error;

// A list of failures.
typedef struct fuseline_failures fuseline_failures;

// A buffer of the plugin that is lent to the caller.
typedef struct fuseline_lent fuseline_lent;

// Receives the reason why a handler fails.
typedef struct fuseline_reason fuseline_reason;

// An engine with ids for its values and streams. Thread-safe.
typedef struct fuseline_session fuseline_session;

// A call site in the front end's program. It is never freed, and there is one for each text.
typedef struct fuseline_site fuseline_site;

// An op, by a number that is the same in every process with one version of the library. Another
// version may use other numbers: look it up by name (fuseline_op_find) once.
typedef uint32_t fuseline_op;

// The kind of an attribute: which member of a fuseline_attr_value is set.
typedef uint32_t fuseline_attr_kind;

// An element type, by a number that never changes.
typedef uint32_t fuseline_dtype;

// Element type and shape of a tensor. Data is dense, row-major and little-endian.
typedef struct fuseline_type {
  // The element type.
  fuseline_dtype dtype;
  // The number of dimensions, at most FUSELINE_MAX_RANK.
  uint32_t rank;
  // Their sizes. Entries after `rank` are ignored.
  uint64_t dims[FUSELINE_MAX_RANK];
} fuseline_type;

// A tensor's data on the host.
typedef struct fuseline_tensor {
  // Element type and shape.
  struct fuseline_type type;
  // The elements.
  const uint8_t *data;
  // The number of bytes, which must match the type.
  size_t size;
} fuseline_tensor;

// The value of an attribute.
typedef union fuseline_attr_value {
  // Of INTEGER, FLAG and DTYPE.
  int64_t integer;
  // Of REAL.
  double real;
  // Of INTEGERS.
  const int64_t *integers;
  // Of FLAGS.
  const uint8_t *flags;
  // Of TEXT.
  const char *text;
  // Of TEXTS.
  const char *const *texts;
  // Of TENSOR.
  const struct fuseline_tensor *tensor;
  // Of ATTRS.
  const struct fuseline_attr *attrs;
} fuseline_attr_value;

// A named value.
typedef struct fuseline_attr {
  // The name, as StableHLO writes it.
  const char *name;
  // Which member of `value` is set.
  fuseline_attr_kind kind;
  // The number of elements, for kinds that are lists.
  uint32_t count;
  // The value.
  union fuseline_attr_value value;
} fuseline_attr;

// What happened to the regions of a manifest.
typedef struct fuseline_warmed {
  // Regions that were compiled and stored.
  uint64_t compiled;
  // Regions that were already present.
  uint64_t present;
  // Regions that could not be compiled or stored.
  uint64_t failed;
  // Why the first of these failed, or null. Free it with fuseline_text_free.
  char *why;
} fuseline_warmed;

// Receives the name of an event and a sentence. The texts live through the call.
typedef void (*fuseline_log_fn)(void *user, const char *name, const char *text);

// Frees the user data of a callback.
typedef void (*fuseline_free_fn)(void *user);

// A point at which a fault may be injected.
typedef uint32_t fuseline_fault_point;

// The fault at a point: FUSELINE_OK for none, FUSELINE_DEVICE or FUSELINE_OUT_OF_MEMORY.
typedef uint32_t (*fuseline_fault_fn)(void *user, fuseline_fault_point point, uint64_t size);

// A stream, body or trace of a session. 0 is none.
typedef uint64_t fuseline_stream;

// A value of a session. 0 is none.
typedef uint64_t fuseline_value;

// Memory for a value's data.
typedef struct fuseline_room {
  // The start of the memory.
  uint8_t *data;
  // Its size in bytes, which must be exactly the size of the value.
  size_t size;
} fuseline_room;

// A host function that programs call with the op custom_call. Its functions are called on any
// thread, possibly concurrently, and must not wait for the engine.
typedef struct fuseline_handler {
  // Size of this structure, as the caller knows it.
  size_t struct_size;
  // Infers the result types of a call from the types of its operands and its configuration.
  // Writes at most `capacity` types and returns their number, or sets a reason. It must be
  // deterministic.
  size_t (*results)(void *user,
                    const struct fuseline_type *operands,
                    size_t num_operands,
                    const struct fuseline_attr *config,
                    size_t num_config,
                    struct fuseline_type *results,
                    size_t capacity,
                    struct fuseline_reason *reason);
  // Computes the results into the given memory, which is zeroed, or sets a reason.
  void (*run)(void *user,
              const struct fuseline_tensor *operands,
              size_t num_operands,
              const struct fuseline_attr *config,
              size_t num_config,
              const struct fuseline_room *results,
              size_t num_results,
              struct fuseline_reason *reason);
  // Nonzero if a call has side effects. Then each call happens once, in program order.
  uint32_t has_side_effect;
  // The user data of both functions. It is never freed: a handler lives as long as the process.
  void *user;
} fuseline_handler;

// The kind of an error, for programs that react to it. People read the message.
typedef uint32_t fuseline_code;

// The stage at which an error occurred.
typedef uint32_t fuseline_stage;

// The contents of an error. The texts live as long as the error.
typedef struct fuseline_error_info {
  // The kind of error.
  fuseline_code code;
  // The stage at which it occurred.
  fuseline_stage stage;
  // Nonzero if a retry may succeed.
  uint32_t retryable;
  // The message for the user: everything in one sentence.
  const char *message;
  // Name of the op concerned, or null.
  const char *op;
  // The call site of that op, or null.
  const char *site;
  // A description of the region concerned, or null.
  const char *region;
} fuseline_error_info;

// A position in a stream, reached when everything recorded there before it is computed. 0 is none.
typedef uint64_t fuseline_event;

// Called when an event is reached.
typedef void (*fuseline_reached_fn)(void *user, fuseline_event event);

// Called when a value is ready (`error` is null) or has failed. The error lives through the call.
typedef void (*fuseline_ready_fn)(void *user,
                                  fuseline_value value,
                                  const struct fuseline_error *error);

// Receives a value's data, or an error and null. Both live through the call.
typedef void (*fuseline_data_fn)(void *user,
                                 fuseline_value value,
                                 const struct fuseline_tensor *tensor,
                                 const struct fuseline_error *error);

// Whether an op must run in program order, even if nobody uses its results.
typedef uint32_t fuseline_effect;

// An op to record. Zero the whole structure first: zero means absent.
typedef struct fuseline_call {
  // Size of this structure, as the caller knows it.
  size_t struct_size;
  // The op.
  fuseline_op op;
  // Its effect.
  fuseline_effect effect;
  // Its attributes, made for this op; null for none.
  const struct fuseline_attrs *attrs;
  // Its operands.
  const fuseline_value *operands;
  // How many there are.
  size_t num_operands;
  // Its bodies, if they come from fuseline_body_end.
  const struct fuseline_body *const *bodies;
  // How many there are.
  size_t num_bodies;
  // Its call site, or null if unknown.
  const struct fuseline_site *site;
} fuseline_call;

// A body of an op, begun by fuseline_body_begin, and what it returns.
typedef struct fuseline_open_body {
  // The body.
  fuseline_stream body;
  // What it returns.
  const fuseline_value *returns;
  // How many there are.
  size_t num_returns;
} fuseline_open_body;

// A device. The texts live as long as the session.
typedef struct fuseline_device_info {
  // The platform as the plugin names it ("cpu", "cuda"), or "reference".
  const char *platform;
  // The kind of device.
  const char *kind;
  // The plugin's id of the device.
  int64_t id;
  // Bytes in use, their peak, and their limit; all ones if the plugin does not report it.
  uint64_t bytes_in_use;
  // See above.
  uint64_t peak_bytes_in_use;
  // See above.
  uint64_t bytes_limit;
  // The number of devices that run each op: this one and those after it.
  uint64_t replicas;
} fuseline_device_info;

// A counter of an engine. Times are in nanoseconds and have names that end in _ns.
typedef struct fuseline_counter {
  // The name. Never freed.
  const char *name;
  // The value.
  uint64_t value;
} fuseline_counter;

// When ops run.
typedef uint32_t fuseline_mode;

// A function of a session: a program that is called like an op. 0 is none.
typedef uint64_t fuseline_function;

// `integer`.
#define FUSELINE_ATTR_INTEGER 1

// `real`.
#define FUSELINE_ATTR_REAL 2

// `integer`, which is 0 or 1.
#define FUSELINE_ATTR_FLAG 3

// `integers`, `count` of them. Shapes are lists too, and so are pairs, one after the other.
#define FUSELINE_ATTR_INTEGERS 4

// `flags`, `count` bytes that are 0 or 1.
#define FUSELINE_ATTR_FLAGS 5

// `text`: a member of an enumeration, or a name.
#define FUSELINE_ATTR_TEXT 6

// `texts`, `count` of them.
#define FUSELINE_ATTR_TEXTS 7

// `integer`, which is a fuseline_dtype.
#define FUSELINE_ATTR_DTYPE 8

// `tensor`, whose data is copied.
#define FUSELINE_ATTR_TENSOR 9

// `attrs`, `count` of them: a group of attributes such as the dimension numbers of a convolution.
#define FUSELINE_ATTR_ATTRS 10

// A compile; the size is its ops.
#define FUSELINE_AT_COMPILE 0

// An execution; the size is its ops.
#define FUSELINE_AT_EXECUTE 1

// A transfer to the device; the size is its bytes.
#define FUSELINE_AT_UPLOAD 2

// A transfer from the device; the size is its bytes.
#define FUSELINE_AT_DOWNLOAD 3

// No error.
#define FUSELINE_OK 0

// The call is invalid: a null pointer, an unknown id, an unreadable text, or a call that waits
// inside a callback.
#define FUSELINE_INVALID 1

// The op table refuses the call: number, types or shapes of operands, attributes.
#define FUSELINE_BAD_OP 2

// Setup failed: no plugin, a plugin that cannot be used, or a setting that this machine cannot
// have.
#define FUSELINE_SETUP 3

// The device or the plugin failed: in a compile, an execution, a transfer.
#define FUSELINE_DEVICE 4

// Memory ran out, on the device or on the host.
#define FUSELINE_OUT_OF_MEMORY 5

// The timeout of the call expired. What it waited for may still happen.
#define FUSELINE_TIMEOUT 6

// A value holds NaN or infinities that a Debug stream was asked to refuse.
#define FUSELINE_NON_FINITE 7

// The value was abandoned: its stream or engine was closed.
#define FUSELINE_ABANDONED 8

// This process was forked from one with an engine, whose threads do not exist here.
#define FUSELINE_FORKED 9

// A bug in this library: please report it.
#define FUSELINE_INTERNAL 10

// Setting up: configuration, plugin, device.
#define FUSELINE_STAGE_SETUP 0

// Recording: operand types, shapes, attributes, ids.
#define FUSELINE_STAGE_RECORD 1

// Compiling a region.
#define FUSELINE_STAGE_COMPILE 2

// Running a region on the device.
#define FUSELINE_STAGE_EXECUTE 3

// Moving data between host and device.
#define FUSELINE_STAGE_TRANSFER 4

// Waiting for a result.
#define FUSELINE_STAGE_WAIT 5

// As the op table says.
#define FUSELINE_PURE 0

// It must run in program order.
#define FUSELINE_ORDERED 1

// In large regions, asynchronously.
#define FUSELINE_FUSED 0

// Each op by itself, asynchronously.
#define FUSELINE_STRICT 1

// Each op by itself. The call that records an op waits for it and checks it.
#define FUSELINE_DEBUG 2

// For a thread: the mode of the stream. For a stream: the mode of the engine.
#define FUSELINE_INHERIT 3

// One byte, 0 or 1.
#define FUSELINE_BOOL 1

// Signed, 8 bits.
#define FUSELINE_I8 2

// Signed, 16 bits.
#define FUSELINE_I16 3

// Signed, 32 bits.
#define FUSELINE_I32 4

// Signed, 64 bits.
#define FUSELINE_I64 5

// Unsigned, 8 bits.
#define FUSELINE_U8 6

// Unsigned, 16 bits.
#define FUSELINE_U16 7

// Unsigned, 32 bits.
#define FUSELINE_U32 8

// Unsigned, 64 bits.
#define FUSELINE_U64 9

// IEEE half precision.
#define FUSELINE_F16 10

// Brain float: the upper half of single precision.
#define FUSELINE_BF16 11

// IEEE single precision.
#define FUSELINE_F32 12

// IEEE double precision.
#define FUSELINE_F64 13

// Two of single precision: real and imaginary part.
#define FUSELINE_C64 18

// Two of double precision.
#define FUSELINE_C128 19

// Other types, of 8 bits and fewer, have no constant: fuseline_dtype_name(2) to (28) list all.
// Types of fewer than 8 bits take one byte per element.
#define FUSELINE_DTYPE_LAST 28

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of the library's interface.
uint32_t fuseline_abi_version(void);

// Version of the library, as text. Never freed.
const char *fuseline_version(void);

// Makes attributes of an op. The input is copied.
struct fuseline_error *fuseline_attrs_new(fuseline_op op,
                                          const struct fuseline_attr *attrs,
                                          size_t count,
                                          struct fuseline_attrs **made);

// Frees attributes; null is a no-op. Ops that were recorded with them keep theirs.
void fuseline_attrs_free(struct fuseline_attrs *attrs);

// Drops every executable of the engine's memory cache. Executions that are running finish.
struct fuseline_error *fuseline_cache_clear(const struct fuseline_session *session);

// Compiles the regions of a manifest that are not in the disk cache, on the engine's compile
// threads. Waits for it.
struct fuseline_error *fuseline_cache_warm(const struct fuseline_session *session,
                                           const char *manifest,
                                           struct fuseline_warmed *warmed);

// Why this engine has no disk cache although one was requested; null if it has one, and if none
// was requested. Free it with fuseline_text_free.
char *fuseline_cache_trouble(const struct fuseline_session *session);

// Makes a config with the defaults.
struct fuseline_error *fuseline_config_new(struct fuseline_config **config);

// Frees a config; null is a no-op. Sessions that were opened with it are not affected.
void fuseline_config_free(struct fuseline_config *config);

// Sets a setting; fuseline_config_settings() lists them. The last value counts.
struct fuseline_error *fuseline_config_set(struct fuseline_config *config,
                                           const char *name,
                                           const char *value);

// The settings, one per line: name, values, meaning. Never freed.
const char *fuseline_config_settings(void);

// Sets an option of the plugin's client, such as cpu_device_count. Its kind is INTEGER, REAL,
// FLAG, TEXT or INTEGERS.
struct fuseline_error *fuseline_config_client_option(struct fuseline_config *config,
                                                     const struct fuseline_attr *option);

// Sets a flag of XLA for every compile. Its kind is INTEGER, REAL, FLAG or TEXT.
struct fuseline_error *fuseline_config_compiler_flag(struct fuseline_config *config,
                                                     const struct fuseline_attr *flag);

// Calls `callback` for every boundary, miss, compile, fallback and failure, with the reason. Calls
// come from any thread, possibly concurrently, and must not wait for the engine.
struct fuseline_error *fuseline_config_on_log(struct fuseline_config *config,
                                              fuseline_log_fn callback,
                                              void *user,
                                              fuseline_free_fn free);

// Injects faults, for tests of programs that must survive them. `plan` is called from any thread,
// possibly concurrently.
struct fuseline_error *fuseline_config_inject_faults(struct fuseline_config *config,
                                                     fuseline_fault_fn plan,
                                                     void *user,
                                                     fuseline_free_fn free);

// Registers the main function of a StableHLO module, given as text, as a named op. It fuses with
// its neighbours like any other op.
struct fuseline_error *fuseline_op_from_stablehlo(const struct fuseline_session *session,
                                                  const char *name,
                                                  const char *module);

// Registers a function from fuseline_body_end as a named op.
struct fuseline_error *fuseline_op_from_body(const struct fuseline_session *session,
                                             const char *name,
                                             const struct fuseline_body *body);

// Records a call of a named op. Results are as for fuseline_record.
struct fuseline_error *fuseline_op_call(const struct fuseline_session *session,
                                        fuseline_stream stream,
                                        const char *name,
                                        const fuseline_value *operands,
                                        size_t num_operands,
                                        const struct fuseline_site *site,
                                        fuseline_value *results,
                                        struct fuseline_type *types,
                                        size_t capacity,
                                        size_t *count);

// Sets the reason. The text is copied.
void fuseline_reason_set(struct fuseline_reason *reason, const char *why);

// Registers a host function under a name, permanently and for all engines of the process. Record
// custom_call with the attribute call_target_name to call it.
struct fuseline_error *fuseline_handler_register(const char *name,
                                                 const struct fuseline_handler *handler);

// The kind of an error; FUSELINE_OK for null.
fuseline_code fuseline_error_code(const struct fuseline_error *error);

// The message for the user, in one sentence; empty for null. It lives as long as the error.
const char *fuseline_error_message(const struct fuseline_error *error);

// All contents of an error.
struct fuseline_error_info fuseline_error_get(const struct fuseline_error *error);

// Frees an error; null is a no-op.
void fuseline_error_free(struct fuseline_error *error);

// Records an event at the current position of a stream. Ends the region that is being recorded
// there and starts it. Does not wait.
struct fuseline_error *fuseline_event_record(const struct fuseline_session *session,
                                             fuseline_stream stream,
                                             fuseline_event *event);

// Whether an event was reached, 1 or 0. Never waits.
struct fuseline_error *fuseline_event_is_reached(const struct fuseline_session *session,
                                                 fuseline_event event,
                                                 uint32_t *reached);

// Waits until an event is reached, or for this many nanoseconds; all ones means no limit. Errors
// of values are reported by the values.
struct fuseline_error *fuseline_event_wait(const struct fuseline_session *session,
                                           fuseline_event event,
                                           uint64_t nanoseconds);

// Calls `callback` when an event is reached, on any thread, or at once if it already is. `user` is
// freed after the call, and also if this function fails.
struct fuseline_error *fuseline_event_on_reached(const struct fuseline_session *session,
                                                 fuseline_event event,
                                                 fuseline_reached_fn callback,
                                                 void *user,
                                                 fuseline_free_fn free);

// Makes everything that is recorded on a stream from now on run after an event of another stream.
// Does not wait. Values of another stream are always waited for, without this.
struct fuseline_error *fuseline_stream_wait_event(const struct fuseline_session *session,
                                                  fuseline_stream stream,
                                                  fuseline_event event);

// Releases an event's id. Threads that wait for the event go on waiting.
struct fuseline_error *fuseline_event_close(const struct fuseline_session *session,
                                            fuseline_event event);

// Whether it is known if a value can be computed, 1 or 0. Never waits and has no side effects.
struct fuseline_error *fuseline_is_decided(const struct fuseline_session *session,
                                           fuseline_value value,
                                           uint32_t *decided);

// Starts the computation of a value and calls `callback` when it is ready or has failed, on any
// thread, or at once if it already is. The callback may record and release; calls that wait are
// refused there. `user` is freed after the call, and also if this function fails.
struct fuseline_error *fuseline_on_ready(const struct fuseline_session *session,
                                         fuseline_value value,
                                         fuseline_ready_fn callback,
                                         void *user,
                                         fuseline_free_fn free);

// Waits until a value is computed, or for this many nanoseconds; all ones means no limit. Copies
// nothing.
struct fuseline_error *fuseline_wait(const struct fuseline_session *session,
                                     fuseline_value value,
                                     uint64_t nanoseconds);

// Copies a value's data on the first replica. Waits until it is computed.
struct fuseline_error *fuseline_read(const struct fuseline_session *session,
                                     fuseline_value value,
                                     uint8_t *data,
                                     size_t size);

// Copies the data of several values, in order. All of them are started before it waits for the
// first.
struct fuseline_error *fuseline_read_all(const struct fuseline_session *session,
                                         const fuseline_value *values,
                                         const struct fuseline_room *rooms,
                                         size_t count);

// Copies a value's data on each replica, in order. There must be one room for each replica.
struct fuseline_error *fuseline_read_replicas(const struct fuseline_session *session,
                                              fuseline_value value,
                                              const struct fuseline_room *rooms,
                                              size_t count);

// Starts to read a value. `callback` gets its data, as described for fuseline_on_ready.
struct fuseline_error *fuseline_read_async(const struct fuseline_session *session,
                                           fuseline_value value,
                                           fuseline_data_fn callback,
                                           void *user,
                                           fuseline_free_fn free);

// Lends a value's PJRT_Buffer. While it is lent, the value lives and its memory is not reused.
// Waits until the op that makes the value is launched, but not for the data: order reads after the
// buffer's own ready event.
struct fuseline_error *fuseline_lend(const struct fuseline_session *session,
                                     fuseline_value value,
                                     struct fuseline_lent **lent,
                                     void **buffer);

// Returns a lent buffer; null is a no-op.
void fuseline_lent_free(struct fuseline_lent *lent);

// Makes a value of a PJRT_Buffer of the engine's own client. The buffer must be alive, have the
// plugin's default layout, and belong to the caller. The session destroys it. If this fails, it
// still belongs to the caller.
struct fuseline_error *fuseline_adopt_buffer(const struct fuseline_session *session,
                                             fuseline_stream stream,
                                             void *buffer,
                                             fuseline_value *value);

// The number of ops. `fuseline_op_at` returns their numbers.
size_t fuseline_op_count(void);

// The number of the op at a position of the table, from 0; all ones if there is none.
fuseline_op fuseline_op_at(size_t place);

// The number of an op by its name, such as "add" or "dot_general".
struct fuseline_error *fuseline_op_find(const char *name, fuseline_op *op);

// A description of an op, as JSON: name, operands, bodies, attributes with their kinds, whether it
// has an effect. Null if there is no such op. Never freed.
const char *fuseline_op_describe(fuseline_op op);

// Records an op and returns its results at once: as many ids as fit, each with one reference, and
// their types if `types` is not null. `*count`, if `count` is not null, is the number of results.
// Results that do not fit are released. In Debug mode, waits for the op and fails if it fails.
struct fuseline_error *fuseline_record(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       const struct fuseline_call *call,
                                       fuseline_value *results,
                                       struct fuseline_type *types,
                                       size_t capacity,
                                       size_t *count);

// Begins a body of an op. Ops recorded under the returned id belong to it. Placeholders made under
// the id are its parameters, in order.
struct fuseline_error *fuseline_body_begin(const struct fuseline_session *session,
                                           fuseline_op op,
                                           const struct fuseline_site *site,
                                           fuseline_stream *body);

// Records an op with bodies from fuseline_body_begin, in the op's order. The bodies end here and
// may use values from outside. `call` must have no bodies. Results are as for fuseline_record.
struct fuseline_error *fuseline_record_with(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            const struct fuseline_call *call,
                                            const struct fuseline_open_body *bodies,
                                            size_t num_bodies,
                                            fuseline_value *results,
                                            struct fuseline_type *types,
                                            size_t capacity,
                                            size_t *count);

// Ends a body that uses no value from outside, so that any number of calls can use it. Its id
// becomes invalid; the ids of its values still have to be released.
struct fuseline_error *fuseline_body_end(const struct fuseline_session *session,
                                         fuseline_stream body,
                                         const fuseline_value *returns,
                                         size_t num_returns,
                                         struct fuseline_body **ended);

// Frees a body; null is a no-op. Calls that were recorded with it keep theirs.
void fuseline_body_free(struct fuseline_body *body);

// Opens an engine. A null config means the defaults, with the first PJRT plugin that is found.
struct fuseline_error *fuseline_session_open(const struct fuseline_config *config,
                                             struct fuseline_session **session);

// Closes a session and its ids; null is a no-op. The engine ends when nothing of it is in flight;
// the call waits for that, as long as the deadlines allow. No other call of this session may be
// running.
void fuseline_session_close(struct fuseline_session *session);

// The number of devices of the session's client, of which it uses some.
size_t fuseline_device_count(const struct fuseline_session *session);

// The device at a position in the client's list, from 0; all ones is the session's own.
struct fuseline_error *fuseline_device_at(const struct fuseline_session *session,
                                          size_t place,
                                          struct fuseline_device_info *info);

// The engine's counters: as many as fit, and their number.
struct fuseline_error *fuseline_counters(const struct fuseline_session *session,
                                         struct fuseline_counter *counters,
                                         size_t capacity,
                                         size_t *count);

// The number of values with an id. Those that are left at the end have leaked.
size_t fuseline_live_values(const struct fuseline_session *session);

// Takes the failures of values since the previous call, of all sessions of the engine, whether or
// not the values were read: one for each cause, and only the latest. Each is reported once. The
// caller owns the list.
struct fuseline_error *fuseline_take_failures(const struct fuseline_session *session,
                                              struct fuseline_failures **failures);

// The failure at a position, from 0; null after the last. It lives as long as the list.
const struct fuseline_error *fuseline_failures_at(const struct fuseline_failures *failures,
                                                  size_t place);

// Frees a list of failures; null is a no-op.
void fuseline_failures_free(struct fuseline_failures *failures);

// Opens a stream: a sequence of ops that run as if one after the other.
struct fuseline_error *fuseline_stream_open(const struct fuseline_session *session,
                                            fuseline_stream *stream);

// Releases a stream's id. What was recorded on it still runs, and its values stay valid.
struct fuseline_error *fuseline_stream_close(const struct fuseline_session *session,
                                             fuseline_stream stream);

// Ends the region that is being recorded on a stream and starts it. Does not wait.
struct fuseline_error *fuseline_flush(const struct fuseline_session *session,
                                      fuseline_stream stream);

// Starts the computation of values. Does not wait.
struct fuseline_error *fuseline_flush_values(const struct fuseline_session *session,
                                             const fuseline_value *values,
                                             size_t count);

// Waits until everything recorded so far on a stream is computed, or for this many nanoseconds;
// all ones means no limit. Errors of values are reported by the values.
struct fuseline_error *fuseline_synchronize(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            uint64_t nanoseconds);

// Waits until everything recorded so far on any stream of the engine is computed.
struct fuseline_error *fuseline_synchronize_all(const struct fuseline_session *session);

// Sets the mode of ops recorded from now on, unless their stream or thread has its own.
struct fuseline_error *fuseline_set_mode(const struct fuseline_session *session,
                                         fuseline_mode mode);

// Sets the mode of ops recorded on a stream from now on. FUSELINE_INHERIT means the engine's mode.
struct fuseline_error *fuseline_set_stream_mode(const struct fuseline_session *session,
                                                fuseline_stream stream,
                                                fuseline_mode mode);

// Sets the mode of ops that the calling thread records from now on, on any stream.
// FUSELINE_INHERIT means the stream's mode. `*before` is the previous mode.
struct fuseline_error *fuseline_swap_thread_mode(fuseline_mode mode, fuseline_mode *before);

// The mode of an op that the calling thread would record on a stream now.
struct fuseline_error *fuseline_mode_of(const struct fuseline_session *session,
                                        fuseline_stream stream,
                                        fuseline_mode *mode);

// The site of a text, such as "train.py:12", for errors, events and timelines. It is never part of
// a key.
struct fuseline_error *fuseline_site_of(const char *text, const struct fuseline_site **site);

// Sets the site of the calling thread, which events about reads and waits name from now on; null
// means unknown. It has no other effect.
void fuseline_set_thread_site(const struct fuseline_site *site);

// Begins a program. Ops recorded under the returned id are checked and typed, but do not run.
// Placeholders made under the id are its inputs, in order. Scalars and constants made under it
// keep their values.
struct fuseline_error *fuseline_trace_begin(const struct fuseline_session *session,
                                            fuseline_stream *trace);

// Ends a program, which returns `outputs`, and makes a function of it. The id of the trace becomes
// invalid; the ids of its values still have to be released.
struct fuseline_error *fuseline_trace_end(const struct fuseline_session *session,
                                          fuseline_stream trace,
                                          const char *name,
                                          const fuseline_value *outputs,
                                          size_t count,
                                          fuseline_function *function);

// Makes a function of a program in the program format (JSON).
struct fuseline_error *fuseline_function_parse(const struct fuseline_session *session,
                                               const char *program,
                                               fuseline_function *function);

// The program of a function in the program format, to save it, inspect it or run it elsewhere.
// Free it with fuseline_text_free.
struct fuseline_error *fuseline_function_program(const struct fuseline_session *session,
                                                 fuseline_function function,
                                                 char **program);

// Records a function's ops on a stream or into a trace. Results are as for fuseline_record.
struct fuseline_error *fuseline_function_call(const struct fuseline_session *session,
                                              fuseline_stream stream,
                                              fuseline_function function,
                                              const fuseline_value *operands,
                                              size_t num_operands,
                                              const struct fuseline_site *site,
                                              fuseline_value *results,
                                              struct fuseline_type *types,
                                              size_t capacity,
                                              size_t *count);

// Releases a function's id.
struct fuseline_error *fuseline_function_forget(const struct fuseline_session *session,
                                                fuseline_function function);

// Frees a text that the caller owns; null is a no-op.
void fuseline_text_free(char *text);

// The name of an element type, as StableHLO writes it; null if there is no such type.
const char *fuseline_dtype_name(fuseline_dtype dtype);

// The number of bytes that a tensor of this type takes on the host; 0 for an invalid type.
uint64_t fuseline_type_size(const struct fuseline_type *type);

// Makes a value from data, the same on every replica. The data is copied.
struct fuseline_error *fuseline_upload(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       const struct fuseline_tensor *tensor,
                                       fuseline_value *value);

// Like fuseline_upload, with different data on each replica: one tensor for each, all of one type.
struct fuseline_error *fuseline_upload_per_replica(const struct fuseline_session *session,
                                                   fuseline_stream stream,
                                                   const struct fuseline_tensor *tensors,
                                                   size_t count,
                                                   fuseline_value *value);

// Makes a value from memory that the device may use in place. The memory must not change until
// `free` is called with `user`, once and on any thread, also if this function fails. XLA's CPU
// client does not copy memory that is aligned to 64 bytes.
struct fuseline_error *fuseline_upload_shared(const struct fuseline_session *session,
                                              fuseline_stream stream,
                                              const struct fuseline_tensor *tensor,
                                              void *user,
                                              fuseline_free_fn free,
                                              fuseline_value *value);

// Makes a constant: its data is compiled in and part of its region's key.
struct fuseline_error *fuseline_constant(const struct fuseline_session *session,
                                         fuseline_stream stream,
                                         const struct fuseline_tensor *tensor,
                                         const struct fuseline_site *site,
                                         fuseline_value *value);

// Makes a lifted scalar: a value without dimensions that is passed to each execution and is part
// of no key. The number is rounded to the element type, which must not be complex.
struct fuseline_error *fuseline_scalar(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       fuseline_dtype dtype,
                                       double number,
                                       fuseline_value *value);

// Like fuseline_scalar, for an integer, which a double might not hold. A float type gets the
// nearest.
struct fuseline_error *fuseline_scalar_integer(const struct fuseline_session *session,
                                               fuseline_stream stream,
                                               fuseline_dtype dtype,
                                               int64_t number,
                                               fuseline_value *value);

// Makes a value without data. On a stream it is filled later; in a body it is a parameter, and in
// a trace an input.
struct fuseline_error *fuseline_placeholder(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            const struct fuseline_type *type,
                                            fuseline_value *value);

// Provides the data of a placeholder, once.
struct fuseline_error *fuseline_fill(const struct fuseline_session *session,
                                     fuseline_value placeholder,
                                     const uint8_t *data,
                                     size_t size);

// Adds a reference to a value.
struct fuseline_error *fuseline_retain(const struct fuseline_session *session,
                                       fuseline_value value);

// Releases a reference. With the last one the id becomes invalid, and the value dies at this
// position of its stream's program.
struct fuseline_error *fuseline_release(const struct fuseline_session *session,
                                        fuseline_value value);

// In-place write: gives an id another value of the same type. Both ids stay valid, and `with`
// keeps its own references. Ops that were recorded before keep the old value.
struct fuseline_error *fuseline_replace(const struct fuseline_session *session,
                                        fuseline_value value,
                                        fuseline_value with);

// Like fuseline_replace, with a value of any type, as when a storage is resized.
struct fuseline_error *fuseline_rebind(const struct fuseline_session *session,
                                       fuseline_value value,
                                       fuseline_value with);

// The number of times that an id was replaced.
struct fuseline_error *fuseline_version_of(const struct fuseline_session *session,
                                           fuseline_value value,
                                           uint64_t *version);

// Element type and shape of the current value of an id.
struct fuseline_error *fuseline_type_of(const struct fuseline_session *session,
                                        fuseline_value value,
                                        struct fuseline_type *type);

// The kind of an error; FUSELINE_OK for null.
fuseline_code fuseline_error_code(const struct fuseline_error *error);

// The message for the user, in one sentence; empty for null. It lives as long as the error.
const char *fuseline_error_message(const struct fuseline_error *error);

// All contents of an error.
struct fuseline_error_info fuseline_error_get(const struct fuseline_error *error);

// Frees an error; null is a no-op.
void fuseline_error_free(struct fuseline_error *error);

// The name of an element type, as StableHLO writes it; null if there is no such type.
const char *fuseline_dtype_name(fuseline_dtype dtype);

// The number of bytes that a tensor of this type takes on the host; 0 for an invalid type.
uint64_t fuseline_type_size(const struct fuseline_type *type);

// The number of ops. `fuseline_op_at` returns their numbers.
size_t fuseline_op_count(void);

// The number of the op at a position of the table, from 0; all ones if there is none.
fuseline_op fuseline_op_at(size_t place);

// The number of an op by its name, such as "add" or "dot_general".
struct fuseline_error *fuseline_op_find(const char *name, fuseline_op *op);

// A description of an op, as JSON: name, operands, bodies, attributes with their kinds, whether it
// has an effect. Null if there is no such op. Never freed.
const char *fuseline_op_describe(fuseline_op op);

// Makes attributes of an op. The input is copied.
struct fuseline_error *fuseline_attrs_new(fuseline_op op,
                                          const struct fuseline_attr *attrs,
                                          size_t count,
                                          struct fuseline_attrs **made);

// Frees attributes; null is a no-op. Ops that were recorded with them keep theirs.
void fuseline_attrs_free(struct fuseline_attrs *attrs);

// Makes a config with the defaults.
struct fuseline_error *fuseline_config_new(struct fuseline_config **config);

// Frees a config; null is a no-op. Sessions that were opened with it are not affected.
void fuseline_config_free(struct fuseline_config *config);

// Sets a setting; fuseline_config_settings() lists them. The last value counts.
struct fuseline_error *fuseline_config_set(struct fuseline_config *config,
                                           const char *name,
                                           const char *value);

// The settings, one per line: name, values, meaning. Never freed.
const char *fuseline_config_settings(void);

// Sets an option of the plugin's client, such as cpu_device_count. Its kind is INTEGER, REAL,
// FLAG, TEXT or INTEGERS.
struct fuseline_error *fuseline_config_client_option(struct fuseline_config *config,
                                                     const struct fuseline_attr *option);

// Sets a flag of XLA for every compile. Its kind is INTEGER, REAL, FLAG or TEXT.
struct fuseline_error *fuseline_config_compiler_flag(struct fuseline_config *config,
                                                     const struct fuseline_attr *flag);

// Calls `callback` for every boundary, miss, compile, fallback and failure, with the reason. Calls
// come from any thread, possibly concurrently, and must not wait for the engine.
struct fuseline_error *fuseline_config_on_log(struct fuseline_config *config,
                                              fuseline_log_fn callback,
                                              void *user,
                                              fuseline_free_fn free);

// Injects faults, for tests of programs that must survive them. `plan` is called from any thread,
// possibly concurrently.
struct fuseline_error *fuseline_config_inject_faults(struct fuseline_config *config,
                                                     fuseline_fault_fn plan,
                                                     void *user,
                                                     fuseline_free_fn free);

// Opens an engine. A null config means the defaults, with the first PJRT plugin that is found.
struct fuseline_error *fuseline_session_open(const struct fuseline_config *config,
                                             struct fuseline_session **session);

// Closes a session and its ids; null is a no-op. The engine ends when nothing of it is in flight;
// the call waits for that, as long as the deadlines allow. No other call of this session may be
// running.
void fuseline_session_close(struct fuseline_session *session);

// The number of devices of the session's client, of which it uses some.
size_t fuseline_device_count(const struct fuseline_session *session);

// The device at a position in the client's list, from 0; all ones is the session's own.
struct fuseline_error *fuseline_device_at(const struct fuseline_session *session,
                                          size_t place,
                                          struct fuseline_device_info *info);

// The engine's counters: as many as fit, and their number.
struct fuseline_error *fuseline_counters(const struct fuseline_session *session,
                                         struct fuseline_counter *counters,
                                         size_t capacity,
                                         size_t *count);

// The number of values with an id. Those that are left at the end have leaked.
size_t fuseline_live_values(const struct fuseline_session *session);

// Takes the failures of values since the previous call, of all sessions of the engine, whether or
// not the values were read: one for each cause, and only the latest. Each is reported once. The
// caller owns the list.
struct fuseline_error *fuseline_take_failures(const struct fuseline_session *session,
                                              struct fuseline_failures **failures);

// The failure at a position, from 0; null after the last. It lives as long as the list.
const struct fuseline_error *fuseline_failures_at(const struct fuseline_failures *failures,
                                                  size_t place);

// Frees a list of failures; null is a no-op.
void fuseline_failures_free(struct fuseline_failures *failures);

// Opens a stream: a sequence of ops that run as if one after the other.
struct fuseline_error *fuseline_stream_open(const struct fuseline_session *session,
                                            fuseline_stream *stream);

// Releases a stream's id. What was recorded on it still runs, and its values stay valid.
struct fuseline_error *fuseline_stream_close(const struct fuseline_session *session,
                                             fuseline_stream stream);

// Ends the region that is being recorded on a stream and starts it. Does not wait.
struct fuseline_error *fuseline_flush(const struct fuseline_session *session,
                                      fuseline_stream stream);

// Starts the computation of values. Does not wait.
struct fuseline_error *fuseline_flush_values(const struct fuseline_session *session,
                                             const fuseline_value *values,
                                             size_t count);

// Waits until everything recorded so far on a stream is computed, or for this many nanoseconds;
// all ones means no limit. Errors of values are reported by the values.
struct fuseline_error *fuseline_synchronize(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            uint64_t nanoseconds);

// Waits until everything recorded so far on any stream of the engine is computed.
struct fuseline_error *fuseline_synchronize_all(const struct fuseline_session *session);

// Sets the mode of ops recorded from now on, unless their stream or thread has its own.
struct fuseline_error *fuseline_set_mode(const struct fuseline_session *session,
                                         fuseline_mode mode);

// Sets the mode of ops recorded on a stream from now on. FUSELINE_INHERIT means the engine's mode.
struct fuseline_error *fuseline_set_stream_mode(const struct fuseline_session *session,
                                                fuseline_stream stream,
                                                fuseline_mode mode);

// Sets the mode of ops that the calling thread records from now on, on any stream.
// FUSELINE_INHERIT means the stream's mode. `*before` is the previous mode.
struct fuseline_error *fuseline_swap_thread_mode(fuseline_mode mode, fuseline_mode *before);

// The mode of an op that the calling thread would record on a stream now.
struct fuseline_error *fuseline_mode_of(const struct fuseline_session *session,
                                        fuseline_stream stream,
                                        fuseline_mode *mode);

// Records an event at the current position of a stream. Ends the region that is being recorded
// there and starts it. Does not wait.
struct fuseline_error *fuseline_event_record(const struct fuseline_session *session,
                                             fuseline_stream stream,
                                             fuseline_event *event);

// Whether an event was reached, 1 or 0. Never waits.
struct fuseline_error *fuseline_event_is_reached(const struct fuseline_session *session,
                                                 fuseline_event event,
                                                 uint32_t *reached);

// Waits until an event is reached, or for this many nanoseconds; all ones means no limit. Errors
// of values are reported by the values.
struct fuseline_error *fuseline_event_wait(const struct fuseline_session *session,
                                           fuseline_event event,
                                           uint64_t nanoseconds);

// Calls `callback` when an event is reached, on any thread, or at once if it already is. `user` is
// freed after the call, and also if this function fails.
struct fuseline_error *fuseline_event_on_reached(const struct fuseline_session *session,
                                                 fuseline_event event,
                                                 fuseline_reached_fn callback,
                                                 void *user,
                                                 fuseline_free_fn free);

// Makes everything that is recorded on a stream from now on run after an event of another stream.
// Does not wait. Values of another stream are always waited for, without this.
struct fuseline_error *fuseline_stream_wait_event(const struct fuseline_session *session,
                                                  fuseline_stream stream,
                                                  fuseline_event event);

// Releases an event's id. Threads that wait for the event go on waiting.
struct fuseline_error *fuseline_event_close(const struct fuseline_session *session,
                                            fuseline_event event);

// The site of a text, such as "train.py:12", for errors, events and timelines. It is never part of
// a key.
struct fuseline_error *fuseline_site_of(const char *text, const struct fuseline_site **site);

// Sets the site of the calling thread, which events about reads and waits name from now on; null
// means unknown. It has no other effect.
void fuseline_set_thread_site(const struct fuseline_site *site);

// Makes a value from data, the same on every replica. The data is copied.
struct fuseline_error *fuseline_upload(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       const struct fuseline_tensor *tensor,
                                       fuseline_value *value);

// Like fuseline_upload, with different data on each replica: one tensor for each, all of one type.
struct fuseline_error *fuseline_upload_per_replica(const struct fuseline_session *session,
                                                   fuseline_stream stream,
                                                   const struct fuseline_tensor *tensors,
                                                   size_t count,
                                                   fuseline_value *value);

// Makes a value from memory that the device may use in place. The memory must not change until
// `free` is called with `user`, once and on any thread, also if this function fails. XLA's CPU
// client does not copy memory that is aligned to 64 bytes.
struct fuseline_error *fuseline_upload_shared(const struct fuseline_session *session,
                                              fuseline_stream stream,
                                              const struct fuseline_tensor *tensor,
                                              void *user,
                                              fuseline_free_fn free,
                                              fuseline_value *value);

// Makes a constant: its data is compiled in and part of its region's key.
struct fuseline_error *fuseline_constant(const struct fuseline_session *session,
                                         fuseline_stream stream,
                                         const struct fuseline_tensor *tensor,
                                         const struct fuseline_site *site,
                                         fuseline_value *value);

// Makes a lifted scalar: a value without dimensions that is passed to each execution and is part
// of no key. The number is rounded to the element type, which must not be complex.
struct fuseline_error *fuseline_scalar(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       fuseline_dtype dtype,
                                       double number,
                                       fuseline_value *value);

// Like fuseline_scalar, for an integer, which a double might not hold. A float type gets the
// nearest.
struct fuseline_error *fuseline_scalar_integer(const struct fuseline_session *session,
                                               fuseline_stream stream,
                                               fuseline_dtype dtype,
                                               int64_t number,
                                               fuseline_value *value);

// Makes a value without data. On a stream it is filled later; in a body it is a parameter, and in
// a trace an input.
struct fuseline_error *fuseline_placeholder(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            const struct fuseline_type *type,
                                            fuseline_value *value);

// Provides the data of a placeholder, once.
struct fuseline_error *fuseline_fill(const struct fuseline_session *session,
                                     fuseline_value placeholder,
                                     const uint8_t *data,
                                     size_t size);

// Adds a reference to a value.
struct fuseline_error *fuseline_retain(const struct fuseline_session *session,
                                       fuseline_value value);

// Releases a reference. With the last one the id becomes invalid, and the value dies at this
// position of its stream's program.
struct fuseline_error *fuseline_release(const struct fuseline_session *session,
                                        fuseline_value value);

// In-place write: gives an id another value of the same type. Both ids stay valid, and `with`
// keeps its own references. Ops that were recorded before keep the old value.
struct fuseline_error *fuseline_replace(const struct fuseline_session *session,
                                        fuseline_value value,
                                        fuseline_value with);

// Like fuseline_replace, with a value of any type, as when a storage is resized.
struct fuseline_error *fuseline_rebind(const struct fuseline_session *session,
                                       fuseline_value value,
                                       fuseline_value with);

// The number of times that an id was replaced.
struct fuseline_error *fuseline_version_of(const struct fuseline_session *session,
                                           fuseline_value value,
                                           uint64_t *version);

// Element type and shape of the current value of an id.
struct fuseline_error *fuseline_type_of(const struct fuseline_session *session,
                                        fuseline_value value,
                                        struct fuseline_type *type);

// Records an op and returns its results at once: as many ids as fit, each with one reference, and
// their types if `types` is not null. `*count`, if `count` is not null, is the number of results.
// Results that do not fit are released. In Debug mode, waits for the op and fails if it fails.
struct fuseline_error *fuseline_record(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       const struct fuseline_call *call,
                                       fuseline_value *results,
                                       struct fuseline_type *types,
                                       size_t capacity,
                                       size_t *count);

// Begins a body of an op. Ops recorded under the returned id belong to it. Placeholders made under
// the id are its parameters, in order.
struct fuseline_error *fuseline_body_begin(const struct fuseline_session *session,
                                           fuseline_op op,
                                           const struct fuseline_site *site,
                                           fuseline_stream *body);

// Records an op with bodies from fuseline_body_begin, in the op's order. The bodies end here and
// may use values from outside. `call` must have no bodies. Results are as for fuseline_record.
struct fuseline_error *fuseline_record_with(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            const struct fuseline_call *call,
                                            const struct fuseline_open_body *bodies,
                                            size_t num_bodies,
                                            fuseline_value *results,
                                            struct fuseline_type *types,
                                            size_t capacity,
                                            size_t *count);

// Ends a body that uses no value from outside, so that any number of calls can use it. Its id
// becomes invalid; the ids of its values still have to be released.
struct fuseline_error *fuseline_body_end(const struct fuseline_session *session,
                                         fuseline_stream body,
                                         const fuseline_value *returns,
                                         size_t num_returns,
                                         struct fuseline_body **ended);

// Frees a body; null is a no-op. Calls that were recorded with it keep theirs.
void fuseline_body_free(struct fuseline_body *body);

// Whether it is known if a value can be computed, 1 or 0. Never waits and has no side effects.
struct fuseline_error *fuseline_is_decided(const struct fuseline_session *session,
                                           fuseline_value value,
                                           uint32_t *decided);

// Starts the computation of a value and calls `callback` when it is ready or has failed, on any
// thread, or at once if it already is. The callback may record and release; calls that wait are
// refused there. `user` is freed after the call, and also if this function fails.
struct fuseline_error *fuseline_on_ready(const struct fuseline_session *session,
                                         fuseline_value value,
                                         fuseline_ready_fn callback,
                                         void *user,
                                         fuseline_free_fn free);

// Waits until a value is computed, or for this many nanoseconds; all ones means no limit. Copies
// nothing.
struct fuseline_error *fuseline_wait(const struct fuseline_session *session,
                                     fuseline_value value,
                                     uint64_t nanoseconds);

// Copies a value's data on the first replica. Waits until it is computed.
struct fuseline_error *fuseline_read(const struct fuseline_session *session,
                                     fuseline_value value,
                                     uint8_t *data,
                                     size_t size);

// Copies the data of several values, in order. All of them are started before it waits for the
// first.
struct fuseline_error *fuseline_read_all(const struct fuseline_session *session,
                                         const fuseline_value *values,
                                         const struct fuseline_room *rooms,
                                         size_t count);

// Copies a value's data on each replica, in order. There must be one room for each replica.
struct fuseline_error *fuseline_read_replicas(const struct fuseline_session *session,
                                              fuseline_value value,
                                              const struct fuseline_room *rooms,
                                              size_t count);

// Starts to read a value. `callback` gets its data, as described for fuseline_on_ready.
struct fuseline_error *fuseline_read_async(const struct fuseline_session *session,
                                           fuseline_value value,
                                           fuseline_data_fn callback,
                                           void *user,
                                           fuseline_free_fn free);

// Lends a value's PJRT_Buffer. While it is lent, the value lives and its memory is not reused.
// Waits until the op that makes the value is launched, but not for the data: order reads after the
// buffer's own ready event.
struct fuseline_error *fuseline_lend(const struct fuseline_session *session,
                                     fuseline_value value,
                                     struct fuseline_lent **lent,
                                     void **buffer);

// Returns a lent buffer; null is a no-op.
void fuseline_lent_free(struct fuseline_lent *lent);

// Makes a value of a PJRT_Buffer of the engine's own client. The buffer must be alive, have the
// plugin's default layout, and belong to the caller. The session destroys it. If this fails, it
// still belongs to the caller.
struct fuseline_error *fuseline_adopt_buffer(const struct fuseline_session *session,
                                             fuseline_stream stream,
                                             void *buffer,
                                             fuseline_value *value);

// Begins a program. Ops recorded under the returned id are checked and typed, but do not run.
// Placeholders made under the id are its inputs, in order. Scalars and constants made under it
// keep their values.
struct fuseline_error *fuseline_trace_begin(const struct fuseline_session *session,
                                            fuseline_stream *trace);

// Ends a program, which returns `outputs`, and makes a function of it. The id of the trace becomes
// invalid; the ids of its values still have to be released.
struct fuseline_error *fuseline_trace_end(const struct fuseline_session *session,
                                          fuseline_stream trace,
                                          const char *name,
                                          const fuseline_value *outputs,
                                          size_t count,
                                          fuseline_function *function);

// Makes a function of a program in the program format (JSON).
struct fuseline_error *fuseline_function_parse(const struct fuseline_session *session,
                                               const char *program,
                                               fuseline_function *function);

// The program of a function in the program format, to save it, inspect it or run it elsewhere.
// Free it with fuseline_text_free.
struct fuseline_error *fuseline_function_program(const struct fuseline_session *session,
                                                 fuseline_function function,
                                                 char **program);

// Records a function's ops on a stream or into a trace. Results are as for fuseline_record.
struct fuseline_error *fuseline_function_call(const struct fuseline_session *session,
                                              fuseline_stream stream,
                                              fuseline_function function,
                                              const fuseline_value *operands,
                                              size_t num_operands,
                                              const struct fuseline_site *site,
                                              fuseline_value *results,
                                              struct fuseline_type *types,
                                              size_t capacity,
                                              size_t *count);

// Releases a function's id.
struct fuseline_error *fuseline_function_forget(const struct fuseline_session *session,
                                                fuseline_function function);

// Frees a text that the caller owns; null is a no-op.
void fuseline_text_free(char *text);

// Registers the main function of a StableHLO module, given as text, as a named op. It fuses with
// its neighbours like any other op.
struct fuseline_error *fuseline_op_from_stablehlo(const struct fuseline_session *session,
                                                  const char *name,
                                                  const char *module);

// Registers a function from fuseline_body_end as a named op.
struct fuseline_error *fuseline_op_from_body(const struct fuseline_session *session,
                                             const char *name,
                                             const struct fuseline_body *body);

// Records a call of a named op. Results are as for fuseline_record.
struct fuseline_error *fuseline_op_call(const struct fuseline_session *session,
                                        fuseline_stream stream,
                                        const char *name,
                                        const fuseline_value *operands,
                                        size_t num_operands,
                                        const struct fuseline_site *site,
                                        fuseline_value *results,
                                        struct fuseline_type *types,
                                        size_t capacity,
                                        size_t *count);

// Sets the reason. The text is copied.
void fuseline_reason_set(struct fuseline_reason *reason, const char *why);

// Registers a host function under a name, permanently and for all engines of the process. Record
// custom_call with the attribute call_target_name to call it.
struct fuseline_error *fuseline_handler_register(const char *name,
                                                 const struct fuseline_handler *handler);

// Drops every executable of the engine's memory cache. Executions that are running finish.
struct fuseline_error *fuseline_cache_clear(const struct fuseline_session *session);

// Compiles the regions of a manifest that are not in the disk cache, on the engine's compile
// threads. Waits for it.
struct fuseline_error *fuseline_cache_warm(const struct fuseline_session *session,
                                           const char *manifest,
                                           struct fuseline_warmed *warmed);

// Why this engine has no disk cache although one was requested; null if it has one, and if none
// was requested. Free it with fuseline_text_free.
char *fuseline_cache_trouble(const struct fuseline_session *session);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FUSELINE_H */
