/*
 * Fuseline for front ends in any language: eager tensor ops that are recorded, fused, compiled by XLA and run asynchronously on any
 * device that has a PJRT plugin.
 *
 * Errors. Every function that can fail returns a fuseline_error *, which is null where all went well. Whoever gets one owns it, reads
 * it (fuseline_error_message and others) and frees it (fuseline_error_free). A function that failed has changed nothing but what its
 * description says, and written no results.
 *
 * Pointers. A pointer that is not null points to what its type says, for the time of the call; texts end with a zero byte and are
 * UTF-8. Null is an error where something must be there. Nothing that is handed over is needed after the call, but for what callbacks
 * and fuseline_upload_shared are given.
 *
 * Ids. Values, streams and functions are numbers that are never given out twice. One that was released, or never given out, is an
 * error in every call. Ids of values count references: release each that you were given.
 *
 * Threads. A session may be used by any threads at once. Attributes, bodies and sites may be shared by threads as long as nobody frees
 * them; a config is for one thread at a time. Ops that several threads record on one stream stand in some order; that of one thread
 * is its own.
 *
 * Callbacks run on whatever thread something happens on. They must not throw or jump out, nor wait for the engine: calls that would
 * are refused with FUSELINE_INVALID. What a callback is given (user) is freed by the function that comes with it, once, after the last
 * call, also when the function that took it fails.
 *
 * Forks. In a child process every call on an engine of its parent fails with FUSELINE_FORKED.
 */

#ifndef FUSELINE_H
#define FUSELINE_H

/* Made from capi/src by `cargo test -p fuseline-capi`: change that, not this. */

#include <stddef.h>
#include <stdint.h>

// Version of this interface, as of the header that a program was compiled with: a thousand times the first number plus the second. The library has the
// same first number, and at least the same second one.
#define FUSELINE_ABI_VERSION 1

// Most results of a handler's call.
#define FUSELINE_MAX_HANDLER_RESULTS 64

// Most dimensions of a tensor.
#define FUSELINE_MAX_RANK 16

// Attributes of an op, checked and ready to be recorded any number of times, on any thread.
typedef struct fuseline_attrs fuseline_attrs;

// A function of an op, ended, which uses nothing from outside.
typedef struct fuseline_body fuseline_body;

// How an engine is to be. Not for several threads at once.
typedef struct fuseline_config fuseline_config;

// An error. Every call that can fail returns one, or null where all went well; whoever gets one owns it.
typedef struct fuseline_error fuseline_error;

// Failures that were taken.
typedef struct fuseline_failures fuseline_failures;

// A buffer of the plugin's that is lent out.
typedef struct fuseline_lent fuseline_lent;

// Where a handler says why it cannot do what it is asked.
typedef struct fuseline_reason fuseline_reason;

// An engine with its values and streams, which have ids. Any thread may use it, several at a time.
typedef struct fuseline_session fuseline_session;

// A place in the front end's program. It is never freed, and there is one for each text.
typedef struct fuseline_site fuseline_site;

// An op, by a number that is the same in every process of one version of the library, and may be another in another version: look it up
// by its name (fuseline_op_find) once.
typedef uint32_t fuseline_op;

// Which member of a fuseline_attr_value counts.
typedef uint32_t fuseline_attr_kind;

// An element type, by the number that never changes.
typedef uint32_t fuseline_dtype;

// Element type and shape of a tensor. Data is dense, row-major and little-endian.
typedef struct fuseline_type {
  // The element type.
  fuseline_dtype dtype;
  // How many dimensions there are, at most FUSELINE_MAX_RANK.
  uint32_t rank;
  // Their sizes; those after `rank` are not looked at.
  uint64_t dims[FUSELINE_MAX_RANK];
} fuseline_type;

// A tensor's data on the host.
typedef struct fuseline_tensor {
  // Element type and shape.
  struct fuseline_type type;
  // The elements.
  const uint8_t *data;
  // How many bytes there are: what the type says.
  size_t size;
} fuseline_tensor;

// What an attribute is.
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
  // Its name, as StableHLO writes it.
  const char *name;
  // Which member of `value` counts.
  fuseline_attr_kind kind;
  // How many there are, of kinds that are lists.
  uint32_t count;
  // The value.
  union fuseline_attr_value value;
} fuseline_attr;

// What became of a manifest's regions.
typedef struct fuseline_warmed {
  // Compiled and stored.
  uint64_t compiled;
  // Those that were there.
  uint64_t present;
  // Those that are not there now.
  uint64_t failed;
  // Why the first of these is not, or null. Free it by fuseline_text_free.
  char *why;
} fuseline_warmed;

// What the engine tells: the name of the event and a sentence. The texts are good for the time of the call.
typedef void (*fuseline_log_fn)(void *user, const char *name, const char *text);

// Frees what a callback is given.
typedef void (*fuseline_free_fn)(void *user);

// A point at which a fault may be planned.
typedef uint32_t fuseline_fault_point;

// What happens at a point: FUSELINE_OK for nothing, FUSELINE_DEVICE or FUSELINE_OUT_OF_MEMORY.
typedef uint32_t (*fuseline_fault_fn)(void *user, fuseline_fault_point point, uint64_t size);

// A stream, a body or a trace of a session. 0 is none.
typedef uint64_t fuseline_stream;

// A value of a session. 0 is none.
typedef uint64_t fuseline_value;

// Room for a value's data.
typedef struct fuseline_room {
  // Where it goes.
  uint8_t *data;
  // How many bytes there are: exactly what the value takes.
  size_t size;
} fuseline_room;

// A function of the host that programs call by the op custom_call. All functions are called on any thread, several at a time, and wait for nothing of the
// engine's.
typedef struct fuseline_handler {
  // Size of this structure, as the caller knows it.
  size_t struct_size;
  // Types of the results of a call, from those of its operands and what the call says besides: writes at most `capacity` of them and returns how
  // many there are, or sets a reason. Must always give the same answer.
  size_t (*results)(void *user,
                    const struct fuseline_type *operands,
                    size_t num_operands,
                    const struct fuseline_attr *config,
                    size_t num_config,
                    struct fuseline_type *results,
                    size_t capacity,
                    struct fuseline_reason *reason);
  // Computes the results into the rooms, all zeros before, or sets a reason.
  void (*run)(void *user,
              const struct fuseline_tensor *operands,
              size_t num_operands,
              const struct fuseline_attr *config,
              size_t num_config,
              const struct fuseline_room *results,
              size_t num_results,
              struct fuseline_reason *reason);
  // Not 0 if a call does more than computing its results: then each happens once, in the order of the program.
  uint32_t has_side_effect;
  // What both functions are given. It is never freed: a handler stays as long as the process.
  void *user;
} fuseline_handler;

// What kind of error it is, for programs that act on it. People read the message.
typedef uint32_t fuseline_code;

// Where in the life of an op an error came up.
typedef uint32_t fuseline_stage;

// What an error says. The texts are the error's, and go with it.
typedef struct fuseline_error_info {
  // What kind it is.
  fuseline_code code;
  // Where in the life of an op it came up.
  fuseline_stage stage;
  // Not 0 if doing the same again may work.
  uint32_t retryable;
  // What to show to the user: all of it in one sentence.
  const char *message;
  // Name of the op concerned, or null.
  const char *op;
  // Where that op was recorded, as its call said, or null.
  const char *site;
  // The region concerned, in words, or null.
  const char *region;
} fuseline_error_info;

// A place in a stream: reached when everything recorded there before it has been computed. 0 is none.
typedef uint64_t fuseline_event;

// Is told when an event is reached.
typedef void (*fuseline_reached_fn)(void *user, fuseline_event event);

// Is told when a value is there (`error` is null) or never will be. The error is good for the time of the call.
typedef void (*fuseline_ready_fn)(void *user, fuseline_value value, const struct fuseline_error *error);

// Gets a value's data, or an error and null. Both are good for the time of the call.
typedef void (*fuseline_data_fn)(void *user,
                                 fuseline_value value,
                                 const struct fuseline_tensor *tensor,
                                 const struct fuseline_error *error);

// Whether an op must run even if nobody uses its results, in the order of the program.
typedef uint32_t fuseline_effect;

// An op to be recorded. Set all of it to zero first: what is zero is left out.
typedef struct fuseline_call {
  // Size of this structure, as the caller knows it.
  size_t struct_size;
  // The op.
  fuseline_op op;
  // What it does besides.
  fuseline_effect effect;
  // Its attributes, made for this op; null for none.
  const struct fuseline_attrs *attrs;
  // Its operands.
  const fuseline_value *operands;
  // How many there are.
  size_t num_operands;
  // Its functions, if they were ended by fuseline_body_end.
  const struct fuseline_body *const *bodies;
  // How many there are.
  size_t num_bodies;
  // Where the program calls it; null where that is not known.
  const struct fuseline_site *site;
} fuseline_call;

// A function of an op, begun by fuseline_body_begin, and what it returns.
typedef struct fuseline_open_body {
  // The body.
  fuseline_stream body;
  // What it returns.
  const fuseline_value *returns;
  // How many there are.
  size_t num_returns;
} fuseline_open_body;

// A device. The texts are the session's.
typedef struct fuseline_device_info {
  // The platform as the plugin names it ("cpu", "cuda"), or "reference".
  const char *platform;
  // The kind of device.
  const char *kind;
  // The plugin's number of it.
  int64_t id;
  // Bytes in use, the most that ever were, and the most that there can be; all ones where the plugin does not say.
  uint64_t bytes_in_use;
  // See above.
  uint64_t peak_bytes_in_use;
  // See above.
  uint64_t bytes_limit;
  // How many devices run each op, this one and those after it.
  uint64_t replicas;
} fuseline_device_info;

// A counter of an engine. Times are in nanoseconds, and their names end in _ns.
typedef struct fuseline_counter {
  // Its name. Never freed.
  const char *name;
  // What it says.
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

// `integers`, `count` of them: also shapes, and pairs one after the other.
#define FUSELINE_ATTR_INTEGERS 4

// `flags`, `count` bytes that are 0 or 1.
#define FUSELINE_ATTR_FLAGS 5

// `text`: a member of an enumeration, a name.
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

// The call is not as it should be: a null pointer, an id that stands for nothing, a text that cannot be read, a call that waits in a callback.
#define FUSELINE_INVALID 1

// The op table refuses the call: number, types or shapes of operands, attributes.
#define FUSELINE_BAD_OP 2

// Setting up failed: no plugin, one that cannot be used, a setting that this machine cannot have.
#define FUSELINE_SETUP 3

// The device failed, or the plugin: in a compile, an execution, a transfer.
#define FUSELINE_DEVICE 4

// Memory ran out, on the device or on the host.
#define FUSELINE_OUT_OF_MEMORY 5

// The time for the call is over; what it waited for may still come.
#define FUSELINE_TIMEOUT 6

// A value holds NaN or infinities that a Debug stream was asked to refuse.
#define FUSELINE_NON_FINITE 7

// The value was given up: its stream or engine is gone.
#define FUSELINE_ABANDONED 8

// This process was forked from one that had an engine, whose threads it does not have.
#define FUSELINE_FORKED 9

// A defect of this library: please report it.
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

// What the op table says.
#define FUSELINE_PURE 0

// It must.
#define FUSELINE_ORDERED 1

// In regions as large as can be; nobody waits.
#define FUSELINE_FUSED 0

// Each op by itself; nobody waits.
#define FUSELINE_STRICT 1

// Each op by itself, waited for and checked by the call that records it.
#define FUSELINE_DEBUG 2

// What the stream says, of a thread; what the engine says, of a stream.
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

// Others, of 8 bits and fewer, have no name here: fuseline_dtype_name(2) to (28) say what there is. Those of fewer than 8 bits take a byte.
#define FUSELINE_DTYPE_LAST 28

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of the interface that the library has.
uint32_t fuseline_abi_version(void);

// Version of the library, as text. Never freed.
const char *fuseline_version(void);

// Makes attributes of an op. Nothing that is given is needed afterwards.
struct fuseline_error *fuseline_attrs_new(fuseline_op op,
                                          const struct fuseline_attr *attrs,
                                          size_t count,
                                          struct fuseline_attrs **made);

// Frees attributes; null is nothing. Ops that were recorded with them keep theirs.
void fuseline_attrs_free(struct fuseline_attrs *attrs);

// Forgets every executable of the engine's memory cache. Those that run finish.
struct fuseline_error *fuseline_cache_clear(const struct fuseline_session *session);

// Compiles what a manifest has and the disk cache has not, on the engine's compile threads, and waits for it.
struct fuseline_error *fuseline_cache_warm(const struct fuseline_session *session,
                                           const char *manifest,
                                           struct fuseline_warmed *warmed);

// Why this engine keeps no executables on the disk although it was to; null if it does, and if it was told not to. Free it by fuseline_text_free.
char *fuseline_cache_trouble(const struct fuseline_session *session);

// The defaults.
struct fuseline_error *fuseline_config_new(struct fuseline_config **config);

// Frees a config; null is nothing. Sessions that were opened with it keep what they have of it.
void fuseline_config_free(struct fuseline_config *config);

// Sets something: fuseline_config_settings() says what there is. The last value counts.
struct fuseline_error *fuseline_config_set(struct fuseline_config *config, const char *name, const char *value);

// What can be set, a line each: name, values, meaning. Never freed.
const char *fuseline_config_settings(void);

// Sets what the plugin makes its client with, such as cpu_device_count: INTEGER, REAL, FLAG, TEXT or INTEGERS.
struct fuseline_error *fuseline_config_client_option(struct fuseline_config *config, const struct fuseline_attr *option);

// Sets a flag of XLA's for every compile: INTEGER, REAL, FLAG or TEXT.
struct fuseline_error *fuseline_config_compiler_flag(struct fuseline_config *config, const struct fuseline_attr *flag);

// Has every boundary, miss, compile, fallback and failure told, with its reason. Called on whatever thread it happens on, several at a time; it must not
// wait for the engine.
struct fuseline_error *fuseline_config_on_log(struct fuseline_config *config,
                                              fuseline_log_fn callback,
                                              void *user,
                                              fuseline_free_fn free);

// Plans faults, for tests of programs that must survive them. Called on whatever thread the point comes up on, several at a time.
struct fuseline_error *fuseline_config_inject_faults(struct fuseline_config *config,
                                                     fuseline_fault_fn plan,
                                                     void *user,
                                                     fuseline_free_fn free);

// Makes the main function of a StableHLO module, as text, an op under a name: fused with its neighbours like any other.
struct fuseline_error *fuseline_op_from_stablehlo(const struct fuseline_session *session, const char *name, const char *module);

// Makes a function that was ended by fuseline_body_end an op under a name.
struct fuseline_error *fuseline_op_from_body(const struct fuseline_session *session,
                                             const char *name,
                                             const struct fuseline_body *body);

// Records a call of the op that has a name. Results as of fuseline_record.
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

// Says why. The text is copied.
void fuseline_reason_set(struct fuseline_reason *reason, const char *why);

// Makes a function of the host known under a name, for all engines of the process, for good. It is called by recording custom_call with the
// attribute call_target_name.
struct fuseline_error *fuseline_handler_register(const char *name,
                                                 const struct fuseline_handler *handler);

// What kind of error it is; FUSELINE_OK of null.
fuseline_code fuseline_error_code(const struct fuseline_error *error);

// What to show to the user, in one sentence; an empty text of null. It is the error's, and goes with it.
const char *fuseline_error_message(const struct fuseline_error *error);

// Everything that an error says.
struct fuseline_error_info fuseline_error_get(const struct fuseline_error *error);

// Frees an error; null is nothing.
void fuseline_error_free(struct fuseline_error *error);

// An event at the place where a stream is now. It ends the region that is being recorded there and lets it run; does not wait.
struct fuseline_error *fuseline_event_record(const struct fuseline_session *session,
                                             fuseline_stream stream,
                                             fuseline_event *event);

// Whether an event has been reached, 1 or 0. Never waits.
struct fuseline_error *fuseline_event_is_reached(const struct fuseline_session *session, fuseline_event event, uint32_t *reached);

// Waits until an event has been reached, at most so many nanoseconds; all ones is no limit. Failures of values stay with the values.
struct fuseline_error *fuseline_event_wait(const struct fuseline_session *session,
                                           fuseline_event event,
                                           uint64_t nanoseconds);

// Calls `callback` when an event is reached: on any thread, at once if it has been. `user` is freed after it, and when this fails.
struct fuseline_error *fuseline_event_on_reached(const struct fuseline_session *session,
                                                 fuseline_event event,
                                                 fuseline_reached_fn callback,
                                                 void *user,
                                                 fuseline_free_fn free);

// Has everything that is recorded on a stream from now on run after an event of another one. Does not wait. (A value that another stream makes is waited for
// anyway.)
struct fuseline_error *fuseline_stream_wait_event(const struct fuseline_session *session,
                                                  fuseline_stream stream,
                                                  fuseline_event event);

// Gives an event's id back. Who waits for it goes on waiting.
struct fuseline_error *fuseline_event_close(const struct fuseline_session *session, fuseline_event event);

// Whether it is decided if a value can be computed, 1 or 0. Never waits and causes nothing.
struct fuseline_error *fuseline_is_decided(const struct fuseline_session *session, fuseline_value value, uint32_t *decided);

// Sees to it that a value is computed, and calls `callback` when it is there or it is known that it never will be: on any thread, at once if it is so
// already. The callback may record and release; what waits is refused there. `user` is freed after it, and when this fails.
struct fuseline_error *fuseline_on_ready(const struct fuseline_session *session,
                                         fuseline_value value,
                                         fuseline_ready_fn callback,
                                         void *user,
                                         fuseline_free_fn free);

// Waits until a value has been computed, at most so many nanoseconds; all ones is no limit. Copies nothing.
struct fuseline_error *fuseline_wait(const struct fuseline_session *session, fuseline_value value, uint64_t nanoseconds);

// Copies a value's data, of the first replica. Waits until it has been computed.
struct fuseline_error *fuseline_read(const struct fuseline_session *session, fuseline_value value, uint8_t *data, size_t size);

// Copies the data of several values, in order: what they need is handed to the device before the first is waited for.
struct fuseline_error *fuseline_read_all(const struct fuseline_session *session,
                                         const fuseline_value *values,
                                         const struct fuseline_room *rooms,
                                         size_t count);

// Copies a value's data of each replica, in their order: as many rooms as there are replicas.
struct fuseline_error *fuseline_read_replicas(const struct fuseline_session *session,
                                              fuseline_value value,
                                              const struct fuseline_room *rooms,
                                              size_t count);

// Starts to read a value; `callback` gets its data, as fuseline_on_ready says.
struct fuseline_error *fuseline_read_async(const struct fuseline_session *session,
                                           fuseline_value value,
                                           fuseline_data_fn callback,
                                           void *user,
                                           fuseline_free_fn free);

// Lends a value's PJRT_Buffer out: while it is lent the value is alive, and its memory is not reused. Waits until the op that makes it has been handed to
// the device, not for the data: order reads after the buffer's own ready event.
struct fuseline_error *fuseline_lend(const struct fuseline_session *session,
                                     fuseline_value value,
                                     struct fuseline_lent **lent,
                                     void **buffer);

// Gives a lent buffer back; null is nothing.
void fuseline_lent_free(struct fuseline_lent *lent);

// A value from a PJRT_Buffer of the engine's own client that somebody else made: alive, with the plugin's default layout, and nobody else's. The
// session destroys it. When this fails it is still the caller's.
struct fuseline_error *fuseline_adopt_buffer(const struct fuseline_session *session,
                                             fuseline_stream stream,
                                             void *buffer,
                                             fuseline_value *value);

// How many ops there are; their numbers are those that `fuseline_op_at` gives.
size_t fuseline_op_count(void);

// The number of the op at a place of the table, from 0; all ones where there is none.
fuseline_op fuseline_op_at(size_t place);

// The number of an op by its name, such as "add" or "dot_general".
struct fuseline_error *fuseline_op_find(const char *name, fuseline_op *op);

// What an op is, as JSON: name, operands, bodies, attributes with their kinds, whether it must not be left out. Null where there is none of this
// number; the text is never freed.
const char *fuseline_op_describe(fuseline_op op);

// Records an op and returns its results at once: as many ids as there is room for, each with one reference, and their types if `types` is not null.
// `*count`, which may be null, is how many results there are; those without room are released. In Debug mode, waits for the op and fails if it does.
struct fuseline_error *fuseline_record(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       const struct fuseline_call *call,
                                       fuseline_value *results,
                                       struct fuseline_type *types,
                                       size_t capacity,
                                       size_t *count);

// Begins a function of an op: ops recorded under the id returned are its own, and its parameters are the placeholders made under it, in order.
struct fuseline_error *fuseline_body_begin(const struct fuseline_session *session,
                                           fuseline_op op,
                                           const struct fuseline_site *site,
                                           fuseline_stream *body);

// Records an op with functions that were begun by fuseline_body_begin, in the op's order; they end here, and may use values from outside. `call` comes
// without bodies. Results as of fuseline_record.
struct fuseline_error *fuseline_record_with(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            const struct fuseline_call *call,
                                            const struct fuseline_open_body *bodies,
                                            size_t num_bodies,
                                            fuseline_value *results,
                                            struct fuseline_type *types,
                                            size_t capacity,
                                            size_t *count);

// Ends a function that uses no value from outside, to be given to any number of calls. Its id stands for nothing any more; those of its values are
// still to be released.
struct fuseline_error *fuseline_body_end(const struct fuseline_session *session,
                                         fuseline_stream body,
                                         const fuseline_value *returns,
                                         size_t num_returns,
                                         struct fuseline_body **ended);

// Frees a function; null is nothing. Calls that were recorded with it keep theirs.
void fuseline_body_free(struct fuseline_body *body);

// Makes an engine. A null config is the defaults: the first PJRT plugin that is found.
struct fuseline_error *fuseline_session_open(const struct fuseline_config *config, struct fuseline_session **session);

// Frees a session, and its ids with it; null is nothing. Ends the engine when nothing of it is under way any more; waits for that as long as its
// deadlines say. No other call of this session may be under way.
void fuseline_session_close(struct fuseline_session *session);

// How many devices the session's client has, of which it uses some.
size_t fuseline_device_count(const struct fuseline_session *session);

// The device at a place of the client's, from 0; all ones is the session's own.
struct fuseline_error *fuseline_device_at(const struct fuseline_session *session,
                                          size_t place,
                                          struct fuseline_device_info *info);

// What the engine has done so far: as many counters as there is room for, and how many there are.
struct fuseline_error *fuseline_counters(const struct fuseline_session *session,
                                         struct fuseline_counter *counters,
                                         size_t capacity,
                                         size_t *count);

// How many values have an id: what is left at the end has leaked.
size_t fuseline_live_values(const struct fuseline_session *session);

// Takes the failures of values since this was last asked, of all sessions of the engine, whether or not anybody read the values: one for each cause, and
// only the latest. They are told, not sticky. The list is the caller's.
struct fuseline_error *fuseline_take_failures(const struct fuseline_session *session,
                                              struct fuseline_failures **failures);

// The failure at a place, from 0; null after the last. It goes with the list.
const struct fuseline_error *fuseline_failures_at(const struct fuseline_failures *failures, size_t place);

// Frees a list of failures; null is nothing.
void fuseline_failures_free(struct fuseline_failures *failures);

// Opens a stream: a sequence of ops that run as if one after the other.
struct fuseline_error *fuseline_stream_open(const struct fuseline_session *session, fuseline_stream *stream);

// Gives a stream's id back. What was recorded on it goes on, and its values stay good.
struct fuseline_error *fuseline_stream_close(const struct fuseline_session *session, fuseline_stream stream);

// Ends the region that is being recorded on a stream and lets it run; does not wait.
struct fuseline_error *fuseline_flush(const struct fuseline_session *session, fuseline_stream stream);

// Sees to it that values are computed without being asked again; does not wait.
struct fuseline_error *fuseline_flush_values(const struct fuseline_session *session, const fuseline_value *values, size_t count);

// Waits until what was recorded so far on a stream has been computed, at most so many nanoseconds; all ones is no limit. Failures of values stay with
// the values.
struct fuseline_error *fuseline_synchronize(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            uint64_t nanoseconds);

// Waits until what was recorded so far on any stream of the engine has been computed.
struct fuseline_error *fuseline_synchronize_all(const struct fuseline_session *session);

// Sets the mode of ops recorded from now on, where neither their stream nor their thread says otherwise.
struct fuseline_error *fuseline_set_mode(const struct fuseline_session *session, fuseline_mode mode);

// Sets the mode of ops recorded on a stream from now on; FUSELINE_INHERIT is the engine's.
struct fuseline_error *fuseline_set_stream_mode(const struct fuseline_session *session,
                                                fuseline_stream stream,
                                                fuseline_mode mode);

// Sets the mode of ops that the calling thread records from now on, on whatever stream; FUSELINE_INHERIT is the stream's. `*before` is what it was.
struct fuseline_error *fuseline_swap_thread_mode(fuseline_mode mode,
                                                 fuseline_mode *before);

// The mode in force for an op that the calling thread records on a stream now.
struct fuseline_error *fuseline_mode_of(const struct fuseline_session *session, fuseline_stream stream, fuseline_mode *mode);

// The site of a text, such as "train.py:12": for errors, events and timelines, and never part of a key.
struct fuseline_error *fuseline_site_of(const char *text, const struct fuseline_site **site);

// Says where the program is on the calling thread, for what is told about reads and waits from now on; null is nowhere. It changes nothing else.
void fuseline_set_thread_site(const struct fuseline_site *site);

// Begins a program: ops recorded under the id returned are checked and typed as always and not run. Its inputs are the placeholders made under that id,
// in order; scalars and constants made under it keep their values.
struct fuseline_error *fuseline_trace_begin(const struct fuseline_session *session,
                                            fuseline_stream *trace);

// Ends a program, which returns `outputs`, and makes a function of it. The id of the trace stands for nothing any more; the ids of its values are still
// to be released.
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

// The program of a function, in the program format, to be saved, looked at or run elsewhere. Free it by fuseline_text_free.
struct fuseline_error *fuseline_function_program(const struct fuseline_session *session,
                                                 fuseline_function function,
                                                 char **program);

// Records a function's ops on a stream, or into a trace. Results as of fuseline_record.
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

// Gives a function's id back.
struct fuseline_error *fuseline_function_forget(const struct fuseline_session *session, fuseline_function function);

// Frees a text that a function gave to be freed; null is nothing.
void fuseline_text_free(char *text);

// Name of an element type, as StableHLO writes it; null where there is none of this number.
const char *fuseline_dtype_name(fuseline_dtype dtype);

// How many bytes a tensor of this type takes on the host; 0 of what is no type.
uint64_t fuseline_type_size(const struct fuseline_type *type);

// A value from data, which is copied before this returns, the same on every replica.
struct fuseline_error *fuseline_upload(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       const struct fuseline_tensor *tensor,
                                       fuseline_value *value);

// As fuseline_upload, with other data on each replica: a tensor for each, all of one type.
struct fuseline_error *fuseline_upload_per_replica(const struct fuseline_session *session,
                                                   fuseline_stream stream,
                                                   const struct fuseline_tensor *tensors,
                                                   size_t count,
                                                   fuseline_value *value);

// A value from memory that the device may use in place. It must not change until `free` is called with `user`, on any thread, which happens once, also
// when this fails. XLA's CPU client does not copy what is aligned to 64 bytes.
struct fuseline_error *fuseline_upload_shared(const struct fuseline_session *session,
                                              fuseline_stream stream,
                                              const struct fuseline_tensor *tensor,
                                              void *user,
                                              fuseline_free_fn free,
                                              fuseline_value *value);

// A constant: its data is part of the key of its region and compiled in.
struct fuseline_error *fuseline_constant(const struct fuseline_session *session,
                                         fuseline_stream stream,
                                         const struct fuseline_tensor *tensor,
                                         const struct fuseline_site *site,
                                         fuseline_value *value);

// A lifted scalar: a value without dimensions that is passed to each execution and is no part of any key. The number is rounded to the element
// type, which is not a complex one.
struct fuseline_error *fuseline_scalar(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       fuseline_dtype dtype,
                                       double number,
                                       fuseline_value *value);

// As fuseline_scalar, of an integer, which a double might not hold; of a float, the nearest.
struct fuseline_error *fuseline_scalar_integer(const struct fuseline_session *session,
                                               fuseline_stream stream,
                                               fuseline_dtype dtype,
                                               int64_t number,
                                               fuseline_value *value);

// A value without data yet. On a stream it is filled later; in a body it is a parameter, and in a trace an input.
struct fuseline_error *fuseline_placeholder(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            const struct fuseline_type *type,
                                            fuseline_value *value);

// Gives a placeholder its data, once.
struct fuseline_error *fuseline_fill(const struct fuseline_session *session,
                                     fuseline_value placeholder,
                                     const uint8_t *data,
                                     size_t size);

// One more reference to a value.
struct fuseline_error *fuseline_retain(const struct fuseline_session *session, fuseline_value value);

// One reference less. With the last one the id stands for nothing any more, and the value's life ends at this place of its stream's program.
struct fuseline_error *fuseline_release(const struct fuseline_session *session,
                                        fuseline_value value);

// Lets an id stand for another value of the same type from now on: what an in-place write comes to. Both ids stay, and `with` keeps its own
// references. Ops that were recorded before keep the old value.
struct fuseline_error *fuseline_replace(const struct fuseline_session *session,
                                        fuseline_value value,
                                        fuseline_value with);

// As fuseline_replace, of any type: what resizing a storage comes to.
struct fuseline_error *fuseline_rebind(const struct fuseline_session *session, fuseline_value value, fuseline_value with);

// How often an id has been replaced.
struct fuseline_error *fuseline_version_of(const struct fuseline_session *session, fuseline_value value, uint64_t *version);

// Element type and shape of what an id stands for now.
struct fuseline_error *fuseline_type_of(const struct fuseline_session *session, fuseline_value value, struct fuseline_type *type);

// What kind of error it is; FUSELINE_OK of null.
fuseline_code fuseline_error_code(const struct fuseline_error *error);

// What to show to the user, in one sentence; an empty text of null. It is the error's, and goes with it.
const char *fuseline_error_message(const struct fuseline_error *error);

// Everything that an error says.
struct fuseline_error_info fuseline_error_get(const struct fuseline_error *error);

// Frees an error; null is nothing.
void fuseline_error_free(struct fuseline_error *error);

// Name of an element type, as StableHLO writes it; null where there is none of this number.
const char *fuseline_dtype_name(fuseline_dtype dtype);

// How many bytes a tensor of this type takes on the host; 0 of what is no type.
uint64_t fuseline_type_size(const struct fuseline_type *type);

// How many ops there are; their numbers are those that `fuseline_op_at` gives.
size_t fuseline_op_count(void);

// The number of the op at a place of the table, from 0; all ones where there is none.
fuseline_op fuseline_op_at(size_t place);

// The number of an op by its name, such as "add" or "dot_general".
struct fuseline_error *fuseline_op_find(const char *name, fuseline_op *op);

// What an op is, as JSON: name, operands, bodies, attributes with their kinds, whether it must not be left out. Null where there is none of this
// number; the text is never freed.
const char *fuseline_op_describe(fuseline_op op);

// Makes attributes of an op. Nothing that is given is needed afterwards.
struct fuseline_error *fuseline_attrs_new(fuseline_op op,
                                          const struct fuseline_attr *attrs,
                                          size_t count,
                                          struct fuseline_attrs **made);

// Frees attributes; null is nothing. Ops that were recorded with them keep theirs.
void fuseline_attrs_free(struct fuseline_attrs *attrs);

// The defaults.
struct fuseline_error *fuseline_config_new(struct fuseline_config **config);

// Frees a config; null is nothing. Sessions that were opened with it keep what they have of it.
void fuseline_config_free(struct fuseline_config *config);

// Sets something: fuseline_config_settings() says what there is. The last value counts.
struct fuseline_error *fuseline_config_set(struct fuseline_config *config, const char *name, const char *value);

// What can be set, a line each: name, values, meaning. Never freed.
const char *fuseline_config_settings(void);

// Sets what the plugin makes its client with, such as cpu_device_count: INTEGER, REAL, FLAG, TEXT or INTEGERS.
struct fuseline_error *fuseline_config_client_option(struct fuseline_config *config, const struct fuseline_attr *option);

// Sets a flag of XLA's for every compile: INTEGER, REAL, FLAG or TEXT.
struct fuseline_error *fuseline_config_compiler_flag(struct fuseline_config *config, const struct fuseline_attr *flag);

// Has every boundary, miss, compile, fallback and failure told, with its reason. Called on whatever thread it happens on, several at a time; it must not
// wait for the engine.
struct fuseline_error *fuseline_config_on_log(struct fuseline_config *config,
                                              fuseline_log_fn callback,
                                              void *user,
                                              fuseline_free_fn free);

// Plans faults, for tests of programs that must survive them. Called on whatever thread the point comes up on, several at a time.
struct fuseline_error *fuseline_config_inject_faults(struct fuseline_config *config,
                                                     fuseline_fault_fn plan,
                                                     void *user,
                                                     fuseline_free_fn free);

// Makes an engine. A null config is the defaults: the first PJRT plugin that is found.
struct fuseline_error *fuseline_session_open(const struct fuseline_config *config, struct fuseline_session **session);

// Frees a session, and its ids with it; null is nothing. Ends the engine when nothing of it is under way any more; waits for that as long as its
// deadlines say. No other call of this session may be under way.
void fuseline_session_close(struct fuseline_session *session);

// How many devices the session's client has, of which it uses some.
size_t fuseline_device_count(const struct fuseline_session *session);

// The device at a place of the client's, from 0; all ones is the session's own.
struct fuseline_error *fuseline_device_at(const struct fuseline_session *session,
                                          size_t place,
                                          struct fuseline_device_info *info);

// What the engine has done so far: as many counters as there is room for, and how many there are.
struct fuseline_error *fuseline_counters(const struct fuseline_session *session,
                                         struct fuseline_counter *counters,
                                         size_t capacity,
                                         size_t *count);

// How many values have an id: what is left at the end has leaked.
size_t fuseline_live_values(const struct fuseline_session *session);

// Takes the failures of values since this was last asked, of all sessions of the engine, whether or not anybody read the values: one for each cause, and
// only the latest. They are told, not sticky. The list is the caller's.
struct fuseline_error *fuseline_take_failures(const struct fuseline_session *session,
                                              struct fuseline_failures **failures);

// The failure at a place, from 0; null after the last. It goes with the list.
const struct fuseline_error *fuseline_failures_at(const struct fuseline_failures *failures, size_t place);

// Frees a list of failures; null is nothing.
void fuseline_failures_free(struct fuseline_failures *failures);

// Opens a stream: a sequence of ops that run as if one after the other.
struct fuseline_error *fuseline_stream_open(const struct fuseline_session *session, fuseline_stream *stream);

// Gives a stream's id back. What was recorded on it goes on, and its values stay good.
struct fuseline_error *fuseline_stream_close(const struct fuseline_session *session, fuseline_stream stream);

// Ends the region that is being recorded on a stream and lets it run; does not wait.
struct fuseline_error *fuseline_flush(const struct fuseline_session *session, fuseline_stream stream);

// Sees to it that values are computed without being asked again; does not wait.
struct fuseline_error *fuseline_flush_values(const struct fuseline_session *session, const fuseline_value *values, size_t count);

// Waits until what was recorded so far on a stream has been computed, at most so many nanoseconds; all ones is no limit. Failures of values stay with
// the values.
struct fuseline_error *fuseline_synchronize(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            uint64_t nanoseconds);

// Waits until what was recorded so far on any stream of the engine has been computed.
struct fuseline_error *fuseline_synchronize_all(const struct fuseline_session *session);

// Sets the mode of ops recorded from now on, where neither their stream nor their thread says otherwise.
struct fuseline_error *fuseline_set_mode(const struct fuseline_session *session, fuseline_mode mode);

// Sets the mode of ops recorded on a stream from now on; FUSELINE_INHERIT is the engine's.
struct fuseline_error *fuseline_set_stream_mode(const struct fuseline_session *session,
                                                fuseline_stream stream,
                                                fuseline_mode mode);

// Sets the mode of ops that the calling thread records from now on, on whatever stream; FUSELINE_INHERIT is the stream's. `*before` is what it was.
struct fuseline_error *fuseline_swap_thread_mode(fuseline_mode mode,
                                                 fuseline_mode *before);

// The mode in force for an op that the calling thread records on a stream now.
struct fuseline_error *fuseline_mode_of(const struct fuseline_session *session, fuseline_stream stream, fuseline_mode *mode);

// An event at the place where a stream is now. It ends the region that is being recorded there and lets it run; does not wait.
struct fuseline_error *fuseline_event_record(const struct fuseline_session *session,
                                             fuseline_stream stream,
                                             fuseline_event *event);

// Whether an event has been reached, 1 or 0. Never waits.
struct fuseline_error *fuseline_event_is_reached(const struct fuseline_session *session, fuseline_event event, uint32_t *reached);

// Waits until an event has been reached, at most so many nanoseconds; all ones is no limit. Failures of values stay with the values.
struct fuseline_error *fuseline_event_wait(const struct fuseline_session *session,
                                           fuseline_event event,
                                           uint64_t nanoseconds);

// Calls `callback` when an event is reached: on any thread, at once if it has been. `user` is freed after it, and when this fails.
struct fuseline_error *fuseline_event_on_reached(const struct fuseline_session *session,
                                                 fuseline_event event,
                                                 fuseline_reached_fn callback,
                                                 void *user,
                                                 fuseline_free_fn free);

// Has everything that is recorded on a stream from now on run after an event of another one. Does not wait. (A value that another stream makes is waited for
// anyway.)
struct fuseline_error *fuseline_stream_wait_event(const struct fuseline_session *session,
                                                  fuseline_stream stream,
                                                  fuseline_event event);

// Gives an event's id back. Who waits for it goes on waiting.
struct fuseline_error *fuseline_event_close(const struct fuseline_session *session, fuseline_event event);

// The site of a text, such as "train.py:12": for errors, events and timelines, and never part of a key.
struct fuseline_error *fuseline_site_of(const char *text, const struct fuseline_site **site);

// Says where the program is on the calling thread, for what is told about reads and waits from now on; null is nowhere. It changes nothing else.
void fuseline_set_thread_site(const struct fuseline_site *site);

// A value from data, which is copied before this returns, the same on every replica.
struct fuseline_error *fuseline_upload(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       const struct fuseline_tensor *tensor,
                                       fuseline_value *value);

// As fuseline_upload, with other data on each replica: a tensor for each, all of one type.
struct fuseline_error *fuseline_upload_per_replica(const struct fuseline_session *session,
                                                   fuseline_stream stream,
                                                   const struct fuseline_tensor *tensors,
                                                   size_t count,
                                                   fuseline_value *value);

// A value from memory that the device may use in place. It must not change until `free` is called with `user`, on any thread, which happens once, also
// when this fails. XLA's CPU client does not copy what is aligned to 64 bytes.
struct fuseline_error *fuseline_upload_shared(const struct fuseline_session *session,
                                              fuseline_stream stream,
                                              const struct fuseline_tensor *tensor,
                                              void *user,
                                              fuseline_free_fn free,
                                              fuseline_value *value);

// A constant: its data is part of the key of its region and compiled in.
struct fuseline_error *fuseline_constant(const struct fuseline_session *session,
                                         fuseline_stream stream,
                                         const struct fuseline_tensor *tensor,
                                         const struct fuseline_site *site,
                                         fuseline_value *value);

// A lifted scalar: a value without dimensions that is passed to each execution and is no part of any key. The number is rounded to the element
// type, which is not a complex one.
struct fuseline_error *fuseline_scalar(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       fuseline_dtype dtype,
                                       double number,
                                       fuseline_value *value);

// As fuseline_scalar, of an integer, which a double might not hold; of a float, the nearest.
struct fuseline_error *fuseline_scalar_integer(const struct fuseline_session *session,
                                               fuseline_stream stream,
                                               fuseline_dtype dtype,
                                               int64_t number,
                                               fuseline_value *value);

// A value without data yet. On a stream it is filled later; in a body it is a parameter, and in a trace an input.
struct fuseline_error *fuseline_placeholder(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            const struct fuseline_type *type,
                                            fuseline_value *value);

// Gives a placeholder its data, once.
struct fuseline_error *fuseline_fill(const struct fuseline_session *session,
                                     fuseline_value placeholder,
                                     const uint8_t *data,
                                     size_t size);

// One more reference to a value.
struct fuseline_error *fuseline_retain(const struct fuseline_session *session, fuseline_value value);

// One reference less. With the last one the id stands for nothing any more, and the value's life ends at this place of its stream's program.
struct fuseline_error *fuseline_release(const struct fuseline_session *session,
                                        fuseline_value value);

// Lets an id stand for another value of the same type from now on: what an in-place write comes to. Both ids stay, and `with` keeps its own
// references. Ops that were recorded before keep the old value.
struct fuseline_error *fuseline_replace(const struct fuseline_session *session,
                                        fuseline_value value,
                                        fuseline_value with);

// As fuseline_replace, of any type: what resizing a storage comes to.
struct fuseline_error *fuseline_rebind(const struct fuseline_session *session, fuseline_value value, fuseline_value with);

// How often an id has been replaced.
struct fuseline_error *fuseline_version_of(const struct fuseline_session *session, fuseline_value value, uint64_t *version);

// Element type and shape of what an id stands for now.
struct fuseline_error *fuseline_type_of(const struct fuseline_session *session, fuseline_value value, struct fuseline_type *type);

// Records an op and returns its results at once: as many ids as there is room for, each with one reference, and their types if `types` is not null.
// `*count`, which may be null, is how many results there are; those without room are released. In Debug mode, waits for the op and fails if it does.
struct fuseline_error *fuseline_record(const struct fuseline_session *session,
                                       fuseline_stream stream,
                                       const struct fuseline_call *call,
                                       fuseline_value *results,
                                       struct fuseline_type *types,
                                       size_t capacity,
                                       size_t *count);

// Begins a function of an op: ops recorded under the id returned are its own, and its parameters are the placeholders made under it, in order.
struct fuseline_error *fuseline_body_begin(const struct fuseline_session *session,
                                           fuseline_op op,
                                           const struct fuseline_site *site,
                                           fuseline_stream *body);

// Records an op with functions that were begun by fuseline_body_begin, in the op's order; they end here, and may use values from outside. `call` comes
// without bodies. Results as of fuseline_record.
struct fuseline_error *fuseline_record_with(const struct fuseline_session *session,
                                            fuseline_stream stream,
                                            const struct fuseline_call *call,
                                            const struct fuseline_open_body *bodies,
                                            size_t num_bodies,
                                            fuseline_value *results,
                                            struct fuseline_type *types,
                                            size_t capacity,
                                            size_t *count);

// Ends a function that uses no value from outside, to be given to any number of calls. Its id stands for nothing any more; those of its values are
// still to be released.
struct fuseline_error *fuseline_body_end(const struct fuseline_session *session,
                                         fuseline_stream body,
                                         const fuseline_value *returns,
                                         size_t num_returns,
                                         struct fuseline_body **ended);

// Frees a function; null is nothing. Calls that were recorded with it keep theirs.
void fuseline_body_free(struct fuseline_body *body);

// Whether it is decided if a value can be computed, 1 or 0. Never waits and causes nothing.
struct fuseline_error *fuseline_is_decided(const struct fuseline_session *session, fuseline_value value, uint32_t *decided);

// Sees to it that a value is computed, and calls `callback` when it is there or it is known that it never will be: on any thread, at once if it is so
// already. The callback may record and release; what waits is refused there. `user` is freed after it, and when this fails.
struct fuseline_error *fuseline_on_ready(const struct fuseline_session *session,
                                         fuseline_value value,
                                         fuseline_ready_fn callback,
                                         void *user,
                                         fuseline_free_fn free);

// Waits until a value has been computed, at most so many nanoseconds; all ones is no limit. Copies nothing.
struct fuseline_error *fuseline_wait(const struct fuseline_session *session, fuseline_value value, uint64_t nanoseconds);

// Copies a value's data, of the first replica. Waits until it has been computed.
struct fuseline_error *fuseline_read(const struct fuseline_session *session, fuseline_value value, uint8_t *data, size_t size);

// Copies the data of several values, in order: what they need is handed to the device before the first is waited for.
struct fuseline_error *fuseline_read_all(const struct fuseline_session *session,
                                         const fuseline_value *values,
                                         const struct fuseline_room *rooms,
                                         size_t count);

// Copies a value's data of each replica, in their order: as many rooms as there are replicas.
struct fuseline_error *fuseline_read_replicas(const struct fuseline_session *session,
                                              fuseline_value value,
                                              const struct fuseline_room *rooms,
                                              size_t count);

// Starts to read a value; `callback` gets its data, as fuseline_on_ready says.
struct fuseline_error *fuseline_read_async(const struct fuseline_session *session,
                                           fuseline_value value,
                                           fuseline_data_fn callback,
                                           void *user,
                                           fuseline_free_fn free);

// Lends a value's PJRT_Buffer out: while it is lent the value is alive, and its memory is not reused. Waits until the op that makes it has been handed to
// the device, not for the data: order reads after the buffer's own ready event.
struct fuseline_error *fuseline_lend(const struct fuseline_session *session,
                                     fuseline_value value,
                                     struct fuseline_lent **lent,
                                     void **buffer);

// Gives a lent buffer back; null is nothing.
void fuseline_lent_free(struct fuseline_lent *lent);

// A value from a PJRT_Buffer of the engine's own client that somebody else made: alive, with the plugin's default layout, and nobody else's. The
// session destroys it. When this fails it is still the caller's.
struct fuseline_error *fuseline_adopt_buffer(const struct fuseline_session *session,
                                             fuseline_stream stream,
                                             void *buffer,
                                             fuseline_value *value);

// Begins a program: ops recorded under the id returned are checked and typed as always and not run. Its inputs are the placeholders made under that id,
// in order; scalars and constants made under it keep their values.
struct fuseline_error *fuseline_trace_begin(const struct fuseline_session *session,
                                            fuseline_stream *trace);

// Ends a program, which returns `outputs`, and makes a function of it. The id of the trace stands for nothing any more; the ids of its values are still
// to be released.
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

// The program of a function, in the program format, to be saved, looked at or run elsewhere. Free it by fuseline_text_free.
struct fuseline_error *fuseline_function_program(const struct fuseline_session *session,
                                                 fuseline_function function,
                                                 char **program);

// Records a function's ops on a stream, or into a trace. Results as of fuseline_record.
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

// Gives a function's id back.
struct fuseline_error *fuseline_function_forget(const struct fuseline_session *session, fuseline_function function);

// Frees a text that a function gave to be freed; null is nothing.
void fuseline_text_free(char *text);

// Makes the main function of a StableHLO module, as text, an op under a name: fused with its neighbours like any other.
struct fuseline_error *fuseline_op_from_stablehlo(const struct fuseline_session *session, const char *name, const char *module);

// Makes a function that was ended by fuseline_body_end an op under a name.
struct fuseline_error *fuseline_op_from_body(const struct fuseline_session *session,
                                             const char *name,
                                             const struct fuseline_body *body);

// Records a call of the op that has a name. Results as of fuseline_record.
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

// Says why. The text is copied.
void fuseline_reason_set(struct fuseline_reason *reason, const char *why);

// Makes a function of the host known under a name, for all engines of the process, for good. It is called by recording custom_call with the
// attribute call_target_name.
struct fuseline_error *fuseline_handler_register(const char *name,
                                                 const struct fuseline_handler *handler);

// Forgets every executable of the engine's memory cache. Those that run finish.
struct fuseline_error *fuseline_cache_clear(const struct fuseline_session *session);

// Compiles what a manifest has and the disk cache has not, on the engine's compile threads, and waits for it.
struct fuseline_error *fuseline_cache_warm(const struct fuseline_session *session,
                                           const char *manifest,
                                           struct fuseline_warmed *warmed);

// Why this engine keeps no executables on the disk although it was to; null if it does, and if it was told not to. Free it by fuseline_text_free.
char *fuseline_cache_trouble(const struct fuseline_session *session);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FUSELINE_H */
