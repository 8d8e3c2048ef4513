/*
 * Calls every function of the interface from C, on the named device. Prints a line for each part; a
 * wrong result ends the program with its line number. tests/programs.rs builds and runs it.
 */
#include <fuseline.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAIL(...) (fprintf(stderr, "seam.c:%d: ", __LINE__), fprintf(stderr, __VA_ARGS__), fprintf(stderr, "\n"), exit(1))
#define IS(condition) ((condition) ? (void)0 : FAIL("%s", #condition))
/* A call that must succeed. */
#define OK(call)                                                                  \
  do {                                                                            \
    fuseline_error *error_ = (call);                                              \
    if (error_) FAIL("%s: %s", #call, fuseline_error_message(error_));            \
  } while (0)
/* A call that must fail with this code and a message that contains these words. */
#define FAILS(code, words, call)                                                                                          \
  do {                                                                                                                    \
    fuseline_error *error_ = (call);                                                                                      \
    if (!error_) FAIL("%s went well", #call);                                                                             \
    if (fuseline_error_code(error_) != (code) || !strstr(fuseline_error_message(error_), words))                         \
      FAIL("%s: code %u: %s", #call, fuseline_error_code(error_), fuseline_error_message(error_));                       \
    fuseline_error_free(error_);                                                                                          \
  } while (0)

static const char *device;
static fuseline_session *session;
static fuseline_stream stream;

static fuseline_config *new_config(void) {
  fuseline_config *config;
  OK(fuseline_config_new(&config));
  OK(fuseline_config_set(config, "device", device));
  return config;
}

static fuseline_session *open_session(fuseline_config *config) {
  fuseline_session *opened;
  OK(fuseline_session_open(config, &opened));
  fuseline_config_free(config);
  return opened;
}

static fuseline_op find(const char *name) {
  fuseline_op op;
  OK(fuseline_op_find(name, &op));
  return op;
}

static fuseline_value vector_on(fuseline_session *on, fuseline_stream at, const float *data, uint64_t count) {
  fuseline_tensor tensor = {.type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {count}}, .data = (const uint8_t *)data, .size = count * sizeof *data};
  fuseline_value value;
  OK(fuseline_upload(on, at, &tensor, &value));
  return value;
}

static fuseline_value vector(const float *data, uint64_t count) { return vector_on(session, stream, data, count); }

static fuseline_error *try_op(fuseline_stream at, const char *name, const fuseline_attrs *attrs, const fuseline_value *operands, size_t count, fuseline_value *result) {
  fuseline_call call = {.struct_size = sizeof call, .op = find(name), .attrs = attrs, .operands = operands, .num_operands = count};
  OK(fuseline_site_of("script.py:7", &call.site));
  return fuseline_record(session, at, &call, result, NULL, 1, NULL);
}

static fuseline_value op_at(fuseline_stream at, const char *name, const fuseline_attrs *attrs, fuseline_value a, fuseline_value b) {
  const fuseline_value operands[] = {a, b};
  fuseline_value result;
  OK(try_op(at, name, attrs, operands, b ? 2 : 1, &result));
  return result;
}

static fuseline_value op(const char *name, fuseline_value a, fuseline_value b) { return op_at(stream, name, NULL, a, b); }

static void release(fuseline_value value) { OK(fuseline_release(session, value)); }

static void is_at(int line, fuseline_value value, const float *wanted, size_t count) {
  float found[16];
  OK(fuseline_read(session, value, (uint8_t *)found, count * sizeof *found));
  for (size_t i = 0; i < count; i++)
    if (!(fabsf(found[i] - wanted[i]) <= 1e-5f)) {
      fprintf(stderr, "seam.c:%d: element %zu is %g, not %g\n", line, i, found[i], wanted[i]);
      exit(1);
    }
}
#define HAS(value, ...) is_at(__LINE__, value, (const float[]){__VA_ARGS__}, sizeof((float[]){__VA_ARGS__}) / sizeof(float))

static uint64_t counter_of(fuseline_session *of, const char *name) {
  fuseline_counter all[100];
  size_t count;
  OK(fuseline_counters(of, all, 100, &count));
  IS(count > 20 && count <= 100);
  for (size_t i = 0; i < count; i++)
    if (!strcmp(all[i].name, name)) return all[i].value;
  FAIL("no counter %s", name);
}

/* ----- parts ----- */

static void versions(void) {
  IS(fuseline_abi_version() == FUSELINE_ABI_VERSION);
  IS(strlen(fuseline_version()) >= 5);
  IS(!strcmp(fuseline_dtype_name(FUSELINE_F32), "f32") && !strcmp(fuseline_dtype_name(FUSELINE_BOOL), "i1"));
  IS(fuseline_dtype_name(0) == NULL && fuseline_dtype_name(FUSELINE_DTYPE_LAST + 1) == NULL);
  const fuseline_type type = {.dtype = FUSELINE_I16, .rank = 2, .dims = {3, 5}}, none = {.dtype = 99};
  IS(fuseline_type_size(&type) == 30 && fuseline_type_size(&none) == 0 && fuseline_type_size(NULL) == 0);
  IS(strstr(fuseline_config_settings(), "disk_cache_read_only: true, false"));
  IS(fuseline_error_code(NULL) == FUSELINE_OK && !strcmp(fuseline_error_message(NULL), "") && fuseline_error_get(NULL).op == NULL);
  fuseline_error_free(NULL);
}

static void op_table(void) {
  IS(fuseline_op_count() > 100);
  for (size_t place = 0; place < fuseline_op_count(); place++) {
    const char *text = fuseline_op_describe(fuseline_op_at(place));
    IS(text && strstr(text, "\"operands\""));
  }
  IS(fuseline_op_at(fuseline_op_count()) == UINT32_MAX && fuseline_op_describe(UINT32_MAX) == NULL);
  IS(strstr(fuseline_op_describe(find("compare")), "\"TOTALORDER\""));
  fuseline_op none;
  FAILS(FUSELINE_BAD_OP, "there is no op \"ad\"", fuseline_op_find("ad", &none));
  FAILS(FUSELINE_INVALID, "name is null", fuseline_op_find(NULL, &none));
  FAILS(FUSELINE_INVALID, "op is null", fuseline_op_find("add", NULL));
  FAILS(FUSELINE_INVALID, "name is not UTF-8", fuseline_op_find("\xff", &none));
}

static void settings(void) {
  fuseline_config *config = new_config();
  FAILS(FUSELINE_INVALID, "there is no setting \"moed\"", fuseline_config_set(config, "moed", "fused"));
  FAILS(FUSELINE_INVALID, "mode cannot be \"quick\": it must be fused, strict or debug",
        fuseline_config_set(config, "mode", "quick"));
  FAILS(FUSELINE_INVALID, "replicas cannot be \"two\"", fuseline_config_set(config, "replicas", "two"));
  FAILS(FUSELINE_INVALID, "wait_deadline cannot be \"-1\"", fuseline_config_set(config, "wait_deadline", "-1"));
  FAILS(FUSELINE_INVALID, "config is null", fuseline_config_set(NULL, "mode", "fused"));
  FAILS(FUSELINE_INVALID, "value is null", fuseline_config_set(config, "mode", NULL));
  /* Each setting accepts the first value of its line. */
  char *lines = strdup(fuseline_config_settings()), *rest = NULL;
  for (char *line = strtok_r(lines, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    char *values = strchr(line, ':');
    *values = 0;
    values += 2;
    const size_t length = strcspn(values, ",:");
    values[length] = 0;
    const char *value = strstr(values, "number") || strstr(values, "bytes") || strstr(values, "seconds") ? "1" : values;
    fuseline_error *error = fuseline_config_set(config, line, value);
    if (error) FAIL("%s cannot be %s: %s", line, value, fuseline_error_message(error));
  }
  free(lines);
  fuseline_config_free(config);
  fuseline_config_free(NULL);

  config = new_config();
  const fuseline_attr option = {.name = "nothing.of.the.kind", .kind = FUSELINE_ATTR_FLAG, .value.integer = 1};
  const fuseline_attr dtype = {.name = "cpu_device_count", .kind = FUSELINE_ATTR_DTYPE, .value.integer = FUSELINE_F32};
  OK(fuseline_config_client_option(config, &option));
  FAILS(FUSELINE_INVALID, "INTEGER, REAL, FLAG, TEXT or INTEGERS", fuseline_config_client_option(config, &dtype));
  FAILS(FUSELINE_INVALID, "option is null", fuseline_config_client_option(config, NULL));
  const fuseline_attr flag = {.name = "xla_cpu_enable_fast_math", .kind = FUSELINE_ATTR_FLAG};
  OK(fuseline_config_compiler_flag(config, &flag));
  FAILS(FUSELINE_INVALID, "INTEGER, REAL, FLAG or TEXT", fuseline_config_compiler_flag(config, &dtype));
  fuseline_config_free(config);

  fuseline_session *none;
  OK(fuseline_config_new(&config));
  OK(fuseline_config_set(config, "device", "/no/such/plugin.so"));
  FAILS(FUSELINE_SETUP, "/no/such/plugin.so", fuseline_session_open(config, &none));
  fuseline_config_free(config);
  FAILS(FUSELINE_INVALID, "session is null", fuseline_session_open(NULL, NULL));
  fuseline_session_close(NULL);
  FAILS(FUSELINE_INVALID, "session is null", fuseline_synchronize_all(NULL));

  fuseline_device_info info;
  OK(fuseline_device_at(session, SIZE_MAX, &info));
  IS(info.replicas == 1 && strlen(info.platform) > 2 && strlen(info.kind) > 2);
  IS(fuseline_device_count(session) >= 1 && fuseline_device_count(NULL) == 0);
  OK(fuseline_device_at(session, 0, &info));
  FAILS(FUSELINE_INVALID, "there is no device 1000", fuseline_device_at(session, 1000, &info));
}

static void values(void) {
  const float data[] = {1, -2, 3};
  fuseline_value a = vector(data, 3), b = op("abs", a, 0), c = op("add", a, b);
  HAS(c, 2, 0, 6);
  fuseline_type type;
  OK(fuseline_type_of(session, c, &type));
  IS(type.dtype == FUSELINE_F32 && type.rank == 1 && type.dims[0] == 3 && type.dims[1] == 0);
  uint32_t decided;
  OK(fuseline_is_decided(session, c, &decided));
  IS(decided == 1);
  OK(fuseline_wait(session, c, UINT64_MAX));

  /* References, and ids without a value. */
  OK(fuseline_retain(session, c));
  release(c);
  HAS(c, 2, 0, 6);
  release(c);
  FAILS(FUSELINE_INVALID, "value 0x", fuseline_release(session, c));
  FAILS(FUSELINE_INVALID, "value 0x", fuseline_retain(session, 12345));
  FAILS(FUSELINE_INVALID, "value 0x", fuseline_type_of(session, 0, &type));

  /* In place: earlier ops keep the old value. */
  fuseline_value before = op("negate", a, 0);
  OK(fuseline_replace(session, a, b));
  uint64_t version;
  OK(fuseline_version_of(session, a, &version));
  IS(version == 1);
  HAS(a, 1, 2, 3);
  HAS(before, -1, 2, -3);

  /* Another type needs its own function. */
  const float one[] = {5};
  fuseline_value other = vector(one, 1);
  FAILS(FUSELINE_INVALID, "replace", fuseline_replace(session, a, other));
  OK(fuseline_rebind(session, a, other));
  HAS(a, 5);
  release(other), release(a), release(b), release(before);
}

static void refused_data(void) {
  const float data[] = {1, 2};
  fuseline_value value;
  fuseline_tensor tensor = {.type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {3}}, .data = (const uint8_t *)data, .size = sizeof data};
  FAILS(FUSELINE_INVALID, "12", fuseline_upload(session, stream, &tensor, &value));
  tensor.data = NULL;
  FAILS(FUSELINE_INVALID, "null", fuseline_upload(session, stream, &tensor, &value));
  tensor.data = (const uint8_t *)data;
  tensor.type.rank = 17;
  FAILS(FUSELINE_INVALID, "at most 16 are allowed", fuseline_upload(session, stream, &tensor, &value));
  tensor = (fuseline_tensor){.type = {.dtype = 77, .rank = 1, .dims = {2}}, .data = (const uint8_t *)data, .size = sizeof data};
  FAILS(FUSELINE_INVALID, "77 is not an element type", fuseline_upload(session, stream, &tensor, &value));
  tensor.type = (fuseline_type){.dtype = FUSELINE_F32, .rank = 3, .dims = {1ull << 40, 1ull << 40, 1ull << 40}};
  FAILS(FUSELINE_INVALID, "", fuseline_upload(session, stream, &tensor, &value));
  tensor.type = (fuseline_type){.dtype = FUSELINE_F32, .rank = 1, .dims = {2}};
  FAILS(FUSELINE_INVALID, "stream 0x", fuseline_upload(session, 999, &tensor, &value));
  FAILS(FUSELINE_INVALID, "value is null", fuseline_upload(session, stream, &tensor, NULL));
  FAILS(FUSELINE_INVALID, "tensor is null", fuseline_upload(session, stream, NULL, &value));
  float room[3] = {7, 7, 7};
  fuseline_value two = vector(data, 2);
  FAILS(FUSELINE_INVALID, "takes 8 bytes, but the room has 12",
        fuseline_read(session, two, (uint8_t *)room, sizeof room));
  FAILS(FUSELINE_INVALID, "null", fuseline_read(session, two, NULL, 8));
  IS(room[0] == 7 && room[2] == 7);
  release(two);
}

static void free_it(void *user) { ++*(int *)user; }

static void other_values(void) {
  /* Memory that the device may use in place. */
  static _Alignas(64) float shared[16] = {1, 2, 3, 4};
  static int freed;
  fuseline_tensor tensor = {.type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {4}}, .data = (const uint8_t *)shared, .size = 16};
  fuseline_value value, filled, constant, scalar, whole;
  OK(fuseline_upload_shared(session, stream, &tensor, &freed, free_it, &value));
  fuseline_value twice = op("add", value, value);
  HAS(twice, 2, 4, 6, 8);
  release(value), release(twice);
  OK(fuseline_synchronize_all(session));
  IS(freed == 1);
  FAILS(FUSELINE_INVALID, "stream 0x", fuseline_upload_shared(session, 999, &tensor, &freed, free_it, &value));
  IS(freed == 2);
  FAILS(FUSELINE_INVALID, "value is null", fuseline_upload_shared(session, stream, &tensor, &freed, free_it, NULL));
  IS(freed == 3);

  OK(fuseline_upload_per_replica(session, stream, &tensor, 1, &value));
  HAS(value, 1, 2, 3, 4);
  FAILS(FUSELINE_INVALID, "", fuseline_upload_per_replica(session, stream, (fuseline_tensor[]){tensor, tensor}, 2, &whole));
  FAILS(FUSELINE_INVALID, "the first tensor is null", fuseline_upload_per_replica(session, stream, NULL, 0, &whole));
  float room[4];
  const fuseline_room rooms[] = {{(uint8_t *)room, sizeof room}, {(uint8_t *)room, sizeof room}};
  OK(fuseline_read_replicas(session, value, rooms, 1));
  IS(room[3] == 4);
  FAILS(FUSELINE_INVALID, "2 rooms were given for 1 values", fuseline_read_replicas(session, value, rooms, 2));

  OK(fuseline_constant(session, stream, &tensor, NULL, &constant));
  fuseline_value both = op("multiply", value, constant);
  HAS(both, 1, 4, 9, 16);
  const fuseline_value several[] = {value, both};
  float other[4];
  const fuseline_room two[] = {{(uint8_t *)room, sizeof room}, {(uint8_t *)other, sizeof other}};
  OK(fuseline_read_all(session, several, two, 2));
  IS(room[1] == 2 && other[3] == 16);
  OK(fuseline_flush_values(session, several, 2));

  OK(fuseline_placeholder(session, stream, &tensor.type, &filled));
  fuseline_value later = op("add", filled, value);
  FAILS(FUSELINE_INVALID, "", fuseline_fill(session, filled, (const uint8_t *)shared, 8));
  OK(fuseline_fill(session, filled, (const uint8_t *)shared, 16));
  FAILS(FUSELINE_INVALID, "already filled", fuseline_fill(session, filled, (const uint8_t *)shared, 16));
  HAS(later, 2, 4, 6, 8);

  OK(fuseline_scalar(session, stream, FUSELINE_F32, 0.5, &scalar));
  HAS(scalar, 0.5f);
  OK(fuseline_scalar_integer(session, stream, FUSELINE_I64, INT64_MAX - 1, &whole));
  int64_t number;
  OK(fuseline_read(session, whole, (uint8_t *)&number, sizeof number));
  IS(number == INT64_MAX - 1);
  fuseline_value none;
  FAILS(FUSELINE_INVALID, "cannot be lifted", fuseline_scalar(session, stream, FUSELINE_C64, 1, &none));
  FAILS(FUSELINE_INVALID, "cannot be lifted", fuseline_scalar_integer(session, stream, FUSELINE_C128, 1, &none));
  release(value), release(constant), release(both), release(filled), release(later), release(scalar), release(whole);
}

#define INTS(label, ...) \
  {.name = label, .kind = FUSELINE_ATTR_INTEGERS, .count = sizeof((int64_t[]){__VA_ARGS__}) / 8, .value.integers = (const int64_t[]){__VA_ARGS__}}
#define NONE(label) {.name = label, .kind = FUSELINE_ATTR_INTEGERS}

static fuseline_attrs *new_attrs(const char *name, const fuseline_attr *attrs, size_t count) {
  fuseline_attrs *made;
  OK(fuseline_attrs_new(find(name), attrs, count, &made));
  return made;
}

static void attributes(void) {
  const float data[] = {1, 2, 3, 4};
  fuseline_value a = vector(data, 4), result;
  fuseline_attrs *attrs, *none;

  /* Lists, one of them of pairs. */
  const float zero[] = {0};
  fuseline_value one = vector(zero, 1);
  const fuseline_attr to_scalar[] = {NONE("shape")};
  attrs = new_attrs("reshape", to_scalar, 1);
  fuseline_value nothing = op_at(stream, "reshape", attrs, one, 0);
  fuseline_attrs_free(attrs);
  const fuseline_attr padding[] = {INTS("edge_padding_low", 1), INTS("edge_padding_high", 0), INTS("interior_padding", 0)};
  attrs = new_attrs("pad", padding, 3);
  fuseline_value padded = op_at(stream, "pad", attrs, a, nothing);
  HAS(padded, 0, 1, 2, 3, 4);
  /* Attributes fit the op that they were made for, and no other. */
  FAILS(FUSELINE_BAD_OP, "made for", try_op(stream, "negate", attrs, &a, 1, &result));
  fuseline_attrs_free(attrs);

  /* A text, in any order. */
  const fuseline_attr less[] = {
      {.name = "compare_type", .kind = FUSELINE_ATTR_TEXT, .value.text = "FLOAT"},
      {.name = "comparison_direction", .kind = FUSELINE_ATTR_TEXT, .value.text = "LT"},
  };
  attrs = new_attrs("compare", less, 2);
  fuseline_value flipped = op("negate", a, 0), is_less = op_at(stream, "compare", attrs, flipped, a);
  uint8_t flags[4];
  OK(fuseline_read(session, is_less, flags, 4));
  IS(flags[0] == 1 && flags[3] == 1);
  fuseline_attrs_free(attrs);

  /* A group, a list of texts, a type. */
  const fuseline_attr dims[] = {NONE("lhs_batching_dimensions"), NONE("rhs_batching_dimensions"), INTS("lhs_contracting_dimensions", 0), INTS("rhs_contracting_dimensions", 0)};
  const char *const precision[] = {"HIGHEST", "HIGHEST"};
  const fuseline_attr product[] = {
      {.name = "dot_dimension_numbers", .kind = FUSELINE_ATTR_ATTRS, .count = 4, .value.attrs = dims},
      {.name = "precision_config", .kind = FUSELINE_ATTR_TEXTS, .count = 2, .value.texts = precision},
      {.name = "dtype", .kind = FUSELINE_ATTR_DTYPE, .value.integer = FUSELINE_F32},
  };
  attrs = new_attrs("dot_general", product, 3);
  fuseline_value dot = op_at(stream, "dot_general", attrs, a, a);
  HAS(dot, 30);
  fuseline_attrs_free(attrs);

  /* Data. */
  const fuseline_tensor tensor = {.type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {4}}, .data = (const uint8_t *)data, .size = sizeof data};
  const fuseline_attr value[] = {{.name = "value", .kind = FUSELINE_ATTR_TENSOR, .value.tensor = &tensor}};
  attrs = new_attrs("constant", value, 1);
  fuseline_value constant;
  OK(try_op(stream, "constant", attrs, NULL, 0, &constant));
  HAS(constant, 1, 2, 3, 4);
  fuseline_attrs_free(attrs);

  /* Flags, whole numbers, numbers. */
  const fuseline_attr reduce[] = {
      {.name = "exponent_bits", .kind = FUSELINE_ATTR_INTEGER, .value.integer = 5},
      {.name = "mantissa_bits", .kind = FUSELINE_ATTR_INTEGER, .value.integer = 10},
  };
  attrs = new_attrs("reduce_precision", reduce, 2);
  fuseline_value reduced = op_at(stream, "reduce_precision", attrs, a, 0);
  HAS(reduced, 1, 2, 3, 4);
  fuseline_attrs_free(attrs);

  /* Errors name the attribute. */
  FAILS(FUSELINE_BAD_OP, "needs the attribute comparison_direction", fuseline_attrs_new(find("compare"), less, 1, &none));
  FAILS(FUSELINE_BAD_OP, "add has no attribute \"value\"; it has none", fuseline_attrs_new(find("add"), value, 1, &none));
  const fuseline_attr member[] = {less[0], {.name = "comparison_direction", .kind = FUSELINE_ATTR_TEXT, .value.text = "LESS"}};
  FAILS(FUSELINE_BAD_OP, "not \"LESS\"", fuseline_attrs_new(find("compare"), member, 2, &none));
  const fuseline_attr kind[] = {less[0], INTS("comparison_direction", 1)};
  FAILS(FUSELINE_BAD_OP, "not INTEGERS", fuseline_attrs_new(find("compare"), kind, 2, &none));
  const fuseline_attr twice[] = {less[0], less[0]};
  FAILS(FUSELINE_INVALID, "compare_type is given twice", fuseline_attrs_new(find("compare"), twice, 2, &none));
  const fuseline_attr shape[] = {INTS("shape", -1)};
  FAILS(FUSELINE_BAD_OP, "negative", fuseline_attrs_new(find("reshape"), shape, 1, &none));
  const fuseline_attr unnamed[] = {{.kind = FUSELINE_ATTR_INTEGER}};
  FAILS(FUSELINE_INVALID, "attrs[0].name is null", fuseline_attrs_new(find("add"), unnamed, 1, &none));
  const fuseline_attr unkind[] = {{.name = "x", .kind = 77}};
  FAILS(FUSELINE_INVALID, "x has the unknown kind 77", fuseline_attrs_new(find("add"), unkind, 1, &none));
  const fuseline_attr flag[] = {{.name = "x", .kind = FUSELINE_ATTR_FLAG, .value.integer = 2}};
  FAILS(FUSELINE_INVALID, "a flag must be 0 or 1", fuseline_attrs_new(find("add"), flag, 1, &none));
  FAILS(FUSELINE_INVALID, "attrs is null, but should have 3 elements", fuseline_attrs_new(find("add"), NULL, 3, &none));
  FAILS(FUSELINE_BAD_OP, "no op has the number 4294967295", fuseline_attrs_new(UINT32_MAX, NULL, 0, &none));
  fuseline_attrs_free(NULL);

  /* The op table refuses the call: the error names op and call site, and nothing is recorded. */
  const fuseline_value operands[] = {a, padded};
  fuseline_error *error = try_op(stream, "add", NULL, operands, 2, &result);
  const fuseline_error_info info = fuseline_error_get(error);
  IS(info.code == FUSELINE_BAD_OP && info.stage == FUSELINE_STAGE_RECORD && !info.retryable && !info.region);
  IS(!strcmp(info.op, "add") && !strcmp(info.site, "script.py:7") && strstr(info.message, "script.py:7"));
  fuseline_error_free(error);
  fuseline_call call = {.struct_size = 8};
  FAILS(FUSELINE_INVALID, "call.struct_size is 8", fuseline_record(session, stream, &call, &result, NULL, 1, NULL));
  call.struct_size = sizeof call, call.op = find("add"), call.effect = 9;
  FAILS(FUSELINE_INVALID, "9 is not an effect", fuseline_record(session, stream, &call, &result, NULL, 1, NULL));
  FAILS(FUSELINE_INVALID, "call is null", fuseline_record(session, stream, NULL, &result, NULL, 1, NULL));
  const fuseline_value all[] = {a, one, nothing, padded, flipped, is_less, dot, constant, reduced};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(all[i]);
}

/* A body that adds two numbers. */
static fuseline_body *sum_body(void) {
  const fuseline_type number = {.dtype = FUSELINE_F32};
  fuseline_stream at;
  fuseline_value a, b;
  fuseline_body *body;
  OK(fuseline_body_begin(session, find("reduce"), NULL, &at));
  OK(fuseline_placeholder(session, at, &number, &a));
  OK(fuseline_placeholder(session, at, &number, &b));
  fuseline_value sum = op_at(at, "add", NULL, a, b);
  OK(fuseline_body_end(session, at, &sum, 1, &body));
  release(a), release(b), release(sum);
  return body;
}

/* Groups that contain themselves, or so many others that a full traversal would not end. */
static void circular_attributes(void) {
  fuseline_attrs *none;
  fuseline_attr self = {.name = "again", .kind = FUSELINE_ATTR_ATTRS, .count = 1};
  self.value.attrs = &self;
  FAILS(FUSELINE_INVALID, "does it contain itself?", fuseline_attrs_new(find("slice"), &self, 1, &none));
  fuseline_attr two[] = {{.name = "a", .kind = FUSELINE_ATTR_ATTRS, .count = 2}, {.name = "b", .kind = FUSELINE_ATTR_ATTRS, .count = 2}};
  two[0].value.attrs = two[1].value.attrs = two;
  FAILS(FUSELINE_INVALID, "does it contain itself?", fuseline_attrs_new(find("slice"), two, 2, &none));
  static fuseline_attr levels[7][100];
  static char names[100][4];
  for (int i = 0; i < 100; i++) snprintf(names[i], sizeof names[i], "n%d", i);
  for (int level = 0; level < 7; level++)
    for (int i = 0; i < 100; i++) {
      levels[level][i] = (fuseline_attr){.name = names[i], .kind = level < 6 ? FUSELINE_ATTR_ATTRS : FUSELINE_ATTR_INTEGER, .count = 100};
      if (level < 6) levels[level][i].value.attrs = levels[level + 1];
    }
  FAILS(FUSELINE_INVALID, "more than 65536 values", fuseline_attrs_new(find("slice"), levels[0], 100, &none));
}

static void bodies(void) {
  const float data[] = {1, 2, 3, 4};
  fuseline_value a = vector(data, 4), zero, start, limit;
  OK(fuseline_scalar(session, stream, FUSELINE_F32, 0, &zero));
  fuseline_body *sum = sum_body();
  const fuseline_attr over[] = {INTS("dimensions", 0)};
  fuseline_attrs *attrs = new_attrs("reduce", over, 1);
  const fuseline_value operands[] = {a, zero};
  const fuseline_body *const given[] = {sum};
  fuseline_call call = {.struct_size = sizeof call, .op = find("reduce"), .attrs = attrs, .operands = operands, .num_operands = 2, .bodies = given, .num_bodies = 1};
  fuseline_value total;
  fuseline_type type;
  size_t count;
  OK(fuseline_record(session, stream, &call, &total, &type, 1, &count));
  IS(count == 1 && type.rank == 0 && type.dtype == FUSELINE_F32);
  HAS(total, 10);
  const fuseline_body *const null[] = {NULL};
  call.bodies = null;
  FAILS(FUSELINE_INVALID, "a body of the call is null", fuseline_record(session, stream, &call, &total, NULL, 1, NULL));
  fuseline_attrs_free(attrs);

  /* A loop that doubles a number while it is below a value from outside the body. */
  OK(fuseline_scalar(session, stream, FUSELINE_F32, 100, &limit));
  OK(fuseline_scalar(session, stream, FUSELINE_F32, 3, &start));
  const fuseline_attr less[] = {
      {.name = "comparison_direction", .kind = FUSELINE_ATTR_TEXT, .value.text = "LT"},
      {.name = "compare_type", .kind = FUSELINE_ATTR_TEXT, .value.text = "FLOAT"},
  };
  attrs = new_attrs("compare", less, 2);
  const fuseline_type number = {.dtype = FUSELINE_F32};
  fuseline_stream condition, body;
  fuseline_value x, y;
  OK(fuseline_body_begin(session, find("while"), NULL, &condition));
  OK(fuseline_placeholder(session, condition, &number, &x));
  fuseline_value goes_on = op_at(condition, "compare", attrs, x, limit);
  OK(fuseline_body_begin(session, find("while"), NULL, &body));
  OK(fuseline_placeholder(session, body, &number, &y));
  fuseline_value doubled = op_at(body, "add", NULL, y, y);
  call = (fuseline_call){.struct_size = sizeof call, .op = find("while"), .operands = &start, .num_operands = 1};
  const fuseline_open_body open[] = {{condition, &goes_on, 1}, {body, &doubled, 1}};
  fuseline_value end;
  OK(fuseline_record_with(session, stream, &call, open, 2, &end, NULL, 1, NULL));
  HAS(end, 192);
  FAILS(FUSELINE_INVALID, "stream 0x", fuseline_record_with(session, stream, &call, open, 2, &end, NULL, 1, NULL));
  fuseline_attrs_free(attrs);

  /* A user-defined op, made of a function. */
  fuseline_value seven;
  OK(fuseline_op_from_body(session, "seam.sum", sum));
  const fuseline_value numbers[] = {start, limit};
  OK(fuseline_op_call(session, stream, "seam.sum", numbers, 2, NULL, &seven, NULL, 1, &count));
  IS(count == 1);
  HAS(seven, 103);
  FAILS(FUSELINE_BAD_OP, "", fuseline_op_from_body(session, "no name", sum));
  FAILS(FUSELINE_INVALID, "no op is registered", fuseline_op_call(session, stream, "seam.none", numbers, 2, NULL, &seven, NULL, 1, NULL));
  fuseline_body_free(sum);
  fuseline_body_free(NULL);
  const fuseline_value all[] = {a, zero, total, limit, start, x, y, goes_on, doubled, end, seven};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) release(all[i]);
}

static void stablehlo(void) {
  const char *module =
      "func.func @main(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {\n"
      "  %half = stablehlo.constant dense<5.000000e-01> : tensor<3xf32>\n"
      "  %0 = stablehlo.multiply %x, %half : tensor<3xf32>\n"
      "  return %0, %x : tensor<3xf32>, tensor<3xf32>\n"
      "}\n";
  OK(fuseline_op_from_stablehlo(session, "seam.half", module));
  FAILS(FUSELINE_BAD_OP, "line 3", fuseline_op_from_stablehlo(session, "seam.wrong",
      "func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {\n\n  %0 = stablehlo.multiply %x, %y : tensor<3xf32>\n  return %0 : tensor<3xf32>\n}\n"));
  const float data[] = {2, 4, 6};
  fuseline_value a = vector(data, 3), half;
  size_t count;
  /* The second result does not fit: it is released. */
  const size_t before = fuseline_live_values(session);
  OK(fuseline_op_call(session, stream, "seam.half", &a, 1, NULL, &half, NULL, 1, &count));
  IS(count == 2 && fuseline_live_values(session) == before + 1);
  HAS(half, 1, 2, 3);
  release(a), release(half);
}

static size_t handler_results(void *user, const fuseline_type *operands, size_t num_operands, const fuseline_attr *config, size_t num_config,
                              fuseline_type *results, size_t capacity, fuseline_reason *reason) {
  IS(*(int *)user == 17 && capacity == FUSELINE_MAX_HANDLER_RESULTS);
  if (num_operands != 1 || num_config != 1 || strcmp(config[0].name, "by") || config[0].kind != FUSELINE_ATTR_INTEGER) {
    fuseline_reason_set(reason, "it takes one vector and by");
    return 0;
  }
  results[0] = operands[0];
  return 1;
}

static void handler_run(void *user, const fuseline_tensor *operands, size_t num_operands, const fuseline_attr *config, size_t num_config,
                        const fuseline_room *results, size_t num_results, fuseline_reason *reason) {
  IS(*(int *)user == 17 && num_operands == 1 && num_config == 1 && num_results == 1 && results[0].size == operands[0].size);
  const float *from = (const float *)operands[0].data;
  if (from[0] < 0) {
    fuseline_reason_set(reason, "the first element is negative");
    return;
  }
  for (size_t i = 0; i < operands[0].size / 4; i++) ((float *)results[0].data)[i] = from[i] + config[0].value.integer;
}

static void handlers(void) {
  static int seventeen = 17;
  fuseline_handler handler = {.struct_size = sizeof handler, .results = handler_results, .run = handler_run, .user = &seventeen};
  OK(fuseline_handler_register("seam.shift", &handler));
  FAILS(FUSELINE_INVALID, "seam.shift", fuseline_handler_register("seam.shift", &handler));
  FAILS(FUSELINE_INVALID, "handler is null", fuseline_handler_register("seam.null", NULL));
  handler.struct_size = 3;
  FAILS(FUSELINE_INVALID, "handler.struct_size is 3", fuseline_handler_register("seam.size", &handler));
  const float data[] = {1, 2}, negative[] = {-1, 2};
  fuseline_value a = vector(data, 2), b = vector(negative, 2), result;
  const fuseline_attr config[] = {{.name = "by", .kind = FUSELINE_ATTR_INTEGER, .value.integer = 10}};
  const fuseline_attr call[] = {
      {.name = "call_target_name", .kind = FUSELINE_ATTR_TEXT, .value.text = "seam.shift"},
      {.name = "has_side_effect", .kind = FUSELINE_ATTR_FLAG, .value.integer = 0},
      {.name = "backend_config", .kind = FUSELINE_ATTR_ATTRS, .count = 1, .value.attrs = config},
  };
  if (!strstr(fuseline_op_describe(find("custom_call")), "has_side_effect")) FAIL("%s", fuseline_op_describe(find("custom_call")));
  fuseline_attrs *attrs = new_attrs("custom_call", call, 3);
  result = op_at(stream, "custom_call", attrs, a, 0);
  HAS(result, 11, 12);
  release(result);
  fuseline_value refused;
  const fuseline_value two[] = {a, b};
  FAILS(FUSELINE_BAD_OP, "it takes one vector and by", try_op(stream, "custom_call", attrs, two, 2, &refused));
  result = op_at(stream, "custom_call", attrs, b, 0);
  float room[2];
  FAILS(FUSELINE_DEVICE, "the first element is negative", fuseline_read(session, result, (uint8_t *)room, sizeof room));
  fuseline_attrs_free(attrs);
  release(result), release(a), release(b);
  fuseline_failures *failures;
  OK(fuseline_take_failures(session, &failures));
  IS(strstr(fuseline_error_message(fuseline_failures_at(failures, 0)), "the first element is negative"));
  IS(fuseline_failures_at(failures, 1) == NULL && fuseline_failures_at(NULL, 0) == NULL);
  fuseline_failures_free(failures);
  fuseline_failures_free(NULL);
}

static void traces(void) {
  const fuseline_type type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {2}};
  fuseline_stream trace;
  fuseline_value x, scalar;
  fuseline_function function, again;
  /* A type that only claims to be large allocates no memory. */
  const fuseline_type large = {.dtype = FUSELINE_F32, .rank = 1, .dims = {1ull << 40}};
  OK(fuseline_trace_begin(session, &trace));
  OK(fuseline_placeholder(session, trace, &large, &x));
  fuseline_value less = op_at(trace, "negate", NULL, x, 0);
  OK(fuseline_trace_end(session, trace, "large", &less, 1, &function));
  char *written;
  FAILS(FUSELINE_INVALID, "its inputs would take", fuseline_function_program(session, function, &written));
  OK(fuseline_function_forget(session, function));
  release(x), release(less);

  OK(fuseline_trace_begin(session, &trace));
  OK(fuseline_placeholder(session, trace, &type, &x));
  OK(fuseline_scalar(session, trace, FUSELINE_F32, 1, &scalar));
  fuseline_value y = op_at(trace, "exponential", NULL, x, 0), z = op_at(trace, "log", NULL, y, 0);
  FAILS(FUSELINE_INVALID, "belongs to a trace", fuseline_wait(session, z, UINT64_MAX));
  OK(fuseline_trace_end(session, trace, "round", &z, 1, &function));
  FAILS(FUSELINE_INVALID, "stream 0x", fuseline_trace_end(session, trace, "round", &z, 1, &again));
  release(x), release(y), release(z), release(scalar);
  const float data[] = {1, 2};
  fuseline_value a = vector(data, 2), result;
  OK(fuseline_function_call(session, stream, function, &a, 1, NULL, &result, NULL, 1, NULL));
  HAS(result, 1, 2);
  release(result);
  FAILS(FUSELINE_INVALID, "it takes 1 inputs, but 0 were given",
        fuseline_function_call(session, stream, function, NULL, 0, NULL, &result, NULL, 1, NULL));
  char *program;
  OK(fuseline_function_program(session, function, &program));
  IS(strstr(program, "exponential"));
  OK(fuseline_function_parse(session, program, &again));
  /* In a program the scalar is an input. */
  fuseline_value number;
  OK(fuseline_scalar(session, stream, FUSELINE_F32, 1, &number));
  const fuseline_value both[] = {a, number};
  OK(fuseline_function_call(session, stream, again, both, 2, NULL, &result, NULL, 1, NULL));
  HAS(result, 1, 2);
  release(number);
  fuseline_text_free(program);
  fuseline_text_free(NULL);
  FAILS(FUSELINE_INVALID, "line 1 column", fuseline_function_parse(session, "{\"values\": ", &again));
  OK(fuseline_function_forget(session, function));
  FAILS(FUSELINE_INVALID, "function 0x", fuseline_function_forget(session, function));
  release(a), release(result);
}

static void modes(void) {
  fuseline_mode mode, before;
  OK(fuseline_mode_of(session, stream, &mode));
  IS(mode == FUSELINE_FUSED);
  OK(fuseline_set_stream_mode(session, stream, FUSELINE_STRICT));
  OK(fuseline_mode_of(session, stream, &mode));
  IS(mode == FUSELINE_STRICT);
  OK(fuseline_swap_thread_mode(FUSELINE_DEBUG, &before));
  IS(before == FUSELINE_INHERIT);
  OK(fuseline_mode_of(session, stream, &mode));
  IS(mode == FUSELINE_DEBUG);
  const float data[] = {1};
  const uint64_t executions = counter_of(session, "executions");
  fuseline_value a = vector(data, 1), b = op("negate", a, 0);
  uint32_t decided;
  OK(fuseline_is_decided(session, b, &decided));
  IS(decided && counter_of(session, "ops") > 0 && counter_of(session, "executions") >= executions);
  OK(fuseline_swap_thread_mode(FUSELINE_INHERIT, &before));
  IS(before == FUSELINE_DEBUG);
  OK(fuseline_set_stream_mode(session, stream, FUSELINE_INHERIT));
  OK(fuseline_set_mode(session, FUSELINE_STRICT));
  OK(fuseline_mode_of(session, stream, &mode));
  IS(mode == FUSELINE_STRICT);
  OK(fuseline_set_mode(session, FUSELINE_FUSED));
  FAILS(FUSELINE_INVALID, "cannot inherit a mode", fuseline_set_mode(session, FUSELINE_INHERIT));
  FAILS(FUSELINE_INVALID, "8 is not a mode", fuseline_set_mode(session, 8));
  release(a), release(b);
}

/* What the callbacks received. */
static struct {
  pthread_mutex_t lock;
  pthread_cond_t told;
  int ready, failed, data, freed, refused, reached;
} heard = {.lock = PTHREAD_MUTEX_INITIALIZER, .told = PTHREAD_COND_INITIALIZER};

static void hear(int *what) {
  pthread_mutex_lock(&heard.lock);
  ++*what;
  pthread_cond_broadcast(&heard.told);
  pthread_mutex_unlock(&heard.lock);
}

static void wait_for(int *what, int count) {
  pthread_mutex_lock(&heard.lock);
  while (*what < count) pthread_cond_wait(&heard.told, &heard.lock);
  pthread_mutex_unlock(&heard.lock);
}

static void on_ready(void *user, fuseline_value value, const fuseline_error *error) {
  IS(user == &heard && value);
  /* A call that would wait is refused and does not hang. */
  fuseline_error *refused = fuseline_synchronize(session, stream, UINT64_MAX);
  if (refused && fuseline_error_code(refused) == FUSELINE_INVALID) hear(&heard.refused);
  fuseline_error_free(refused);
  hear(error ? &heard.failed : &heard.ready);
}

static void on_data(void *user, fuseline_value value, const fuseline_tensor *tensor, const fuseline_error *error) {
  IS(user == &heard && value && !tensor == !!error);
  if (error) {
    hear(&heard.failed);
  } else {
    IS(tensor->size == 8 && tensor->type.rank == 1 && ((const float *)tensor->data)[1] == -2);
    hear(&heard.data);
  }
}

static void on_free(void *user) {
  IS(user == &heard);
  hear(&heard.freed);
}

static void callbacks(void) {
  const float data[] = {1, 2};
  fuseline_value a = vector(data, 2), b = op("negate", a, 0);
  OK(fuseline_on_ready(session, b, on_ready, &heard, on_free));
  wait_for(&heard.ready, 1);
  wait_for(&heard.freed, 1);
  IS(heard.refused == 1);
  OK(fuseline_read_async(session, b, on_data, &heard, on_free));
  wait_for(&heard.data, 1);
  wait_for(&heard.freed, 2);
  FAILS(FUSELINE_INVALID, "value 0x", fuseline_on_ready(session, 99, on_ready, &heard, on_free));
  wait_for(&heard.freed, 3);
  FAILS(FUSELINE_INVALID, "callback is null", fuseline_read_async(session, b, NULL, &heard, on_free));
  wait_for(&heard.freed, 4);
  IS(heard.failed == 0 && heard.ready == 1 && heard.data == 1);
  release(a), release(b);
}

static void *record_much(void *unused) {
  (void)unused;
  const float data[] = {1, 2};
  for (int i = 0; i < 50; i++) {
    fuseline_value a = vector(data, 2), b = op("add", a, a), c = op("negate", b, 0);
    HAS(c, -2, -4);
    release(a), release(b), release(c);
  }
  return NULL;
}

static void threads(void) {
  pthread_t all[4];
  for (int i = 0; i < 4; i++) IS(pthread_create(&all[i], NULL, record_much, NULL) == 0);
  for (int i = 0; i < 4; i++) IS(pthread_join(all[i], NULL) == 0);
}

static void streams(void) {
  fuseline_stream other;
  OK(fuseline_stream_open(session, &other));
  const float data[] = {1, 2};
  fuseline_value a = vector_on(session, other, data, 2), b = vector(data, 2);
  /* A value of another stream: the reader waits for it automatically. */
  fuseline_value sum = op_at(other, "add", NULL, a, b);
  OK(fuseline_flush(session, other));
  OK(fuseline_synchronize(session, other, UINT64_MAX));
  HAS(sum, 2, 4);
  OK(fuseline_stream_close(session, other));
  FAILS(FUSELINE_INVALID, "stream 0x", fuseline_stream_close(session, other));
  FAILS(FUSELINE_INVALID, "stream 0x", fuseline_flush(session, other));
  release(a), release(b), release(sum);

  /* Timeouts. */
  const fuseline_type type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {2}};
  fuseline_value never;
  OK(fuseline_stream_open(session, &other));
  OK(fuseline_placeholder(session, other, &type, &never));
  fuseline_value late = op_at(other, "negate", NULL, never, 0);
  fuseline_error *error = fuseline_wait(session, late, 1000000);
  IS(error && fuseline_error_get(error).code == FUSELINE_TIMEOUT && fuseline_error_get(error).retryable);
  fuseline_error_free(error);
  OK(fuseline_fill(session, never, (const uint8_t *)data, 8));
  HAS(late, -1, -2);
  OK(fuseline_stream_close(session, other));
  release(never), release(late);
}

static void on_reached(void *user, fuseline_event event) {
  IS(user == &heard && event);
  hear(&heard.reached);
}

static void events(void) {
  fuseline_stream other;
  OK(fuseline_stream_open(session, &other));
  const float data[] = {1, 2};
  const fuseline_type type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {2}};
  fuseline_value hole, x = vector_on(session, other, data, 2);
  OK(fuseline_placeholder(session, stream, &type, &hole));
  fuseline_value late = op("negate", hole, 0);
  fuseline_event event;
  uint32_t reached;
  OK(fuseline_event_record(session, stream, &event));
  OK(fuseline_stream_wait_event(session, other, event));
  fuseline_value after = op_at(other, "negate", NULL, x, 0);
  OK(fuseline_event_is_reached(session, event, &reached));
  IS(reached == 0);
  FAILS(FUSELINE_TIMEOUT, "event 0x", fuseline_event_wait(session, event, 1000000));
  FAILS(FUSELINE_TIMEOUT, "", fuseline_wait(session, after, 1000000));
  const int freed = heard.freed;
  OK(fuseline_event_on_reached(session, event, on_reached, &heard, on_free));
  OK(fuseline_fill(session, hole, (const uint8_t *)data, 8));
  OK(fuseline_event_wait(session, event, UINT64_MAX));
  wait_for(&heard.reached, 1);
  wait_for(&heard.freed, freed + 1);
  HAS(after, -1, -2);
  OK(fuseline_event_close(session, event));
  FAILS(FUSELINE_INVALID, "event 0x", fuseline_event_close(session, event));
  FAILS(FUSELINE_INVALID, "callback is null", fuseline_event_on_reached(session, event, NULL, &heard, on_free));
  OK(fuseline_stream_close(session, other));
  release(hole), release(late), release(x), release(after);
}

static int told_events, planned;

static void on_event(void *user, const char *name, const char *text) {
  if (*name && *text) __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

static uint32_t plan(void *user, fuseline_fault_point point, uint64_t size) {
  return point == FUSELINE_AT_DOWNLOAD && size == 12 ? (++*(int *)user, FUSELINE_OUT_OF_MEMORY) : FUSELINE_OK;
}

static void faults(void) {
  fuseline_config *config = new_config();
  static int freed;
  OK(fuseline_config_on_log(config, on_event, &told_events, NULL));
  OK(fuseline_config_inject_faults(config, plan, &planned, NULL));
  FAILS(FUSELINE_INVALID, "callback is null", fuseline_config_on_log(config, NULL, &freed, free_it));
  FAILS(FUSELINE_INVALID, "plan is null", fuseline_config_inject_faults(config, NULL, &freed, free_it));
  IS(freed == 2);
  fuseline_session *other = open_session(config);
  fuseline_stream at;
  OK(fuseline_stream_open(other, &at));
  const float data[] = {1, 2, 3};
  fuseline_value a = vector_on(other, at, data, 3), b = vector_on(other, at, data, 2);
  float room[3] = {7, 7, 7};
  fuseline_error *error = fuseline_read(other, a, (uint8_t *)room, 12);
  IS(error && fuseline_error_code(error) == FUSELINE_OUT_OF_MEMORY && fuseline_error_get(error).stage == FUSELINE_STAGE_TRANSFER && room[0] == 7);
  fuseline_error_free(error);
  OK(fuseline_read(other, b, (uint8_t *)room, 8));
  IS(room[1] == 2 && planned > 0 && told_events > 0);
  OK(fuseline_release(other, a));
  OK(fuseline_release(other, b));
  OK(fuseline_stream_close(other, at));
  fuseline_session_close(other);
}

static void caches(const char *folder) {
  char manifest[4096], cache[4096], key[4096];
  snprintf(manifest, sizeof manifest, "%s/manifest.jsonl", folder);
  snprintf(cache, sizeof cache, "%s/cache", folder);
  snprintf(key, sizeof key, "%s/cache.key", folder);
  OK(fuseline_cache_clear(session));
  IS(fuseline_cache_trouble(session) == NULL && fuseline_cache_trouble(NULL) == NULL);
  if (!strcmp(device, "reference")) return;
  fuseline_config *config = new_config();
  OK(fuseline_config_set(config, "manifest", manifest));
  fuseline_session *run = open_session(config);
  fuseline_stream at;
  OK(fuseline_stream_open(run, &at));
  const float data[] = {1, 2};
  fuseline_value a = vector_on(run, at, data, 2), b;
  fuseline_call call = {.struct_size = sizeof call, .op = find("cosine"), .operands = &a, .num_operands = 1};
  OK(fuseline_record(run, at, &call, &b, NULL, 1, NULL));
  OK(fuseline_wait(run, b, UINT64_MAX));
  fuseline_session_close(run);
  config = new_config();
  OK(fuseline_config_set(config, "disk_cache", cache));
  OK(fuseline_config_set(config, "disk_cache_key_file", key));
  fuseline_session *warm = open_session(config);
  fuseline_warmed warmed;
  OK(fuseline_cache_warm(warm, manifest, &warmed));
  IS(warmed.compiled == 1 && warmed.present == 0 && warmed.failed == 0 && !warmed.why);
  OK(fuseline_cache_warm(warm, manifest, &warmed));
  IS(warmed.compiled == 0 && warmed.present == 1);
  FAILS(FUSELINE_SETUP, "none.jsonl", fuseline_cache_warm(warm, "/no/such/none.jsonl", &warmed));
  fuseline_session_close(warm);
}

static void buffers(void) {
  const float data[] = {1, 2};
  fuseline_value a = vector(data, 2), none;
  fuseline_lent *lent;
  void *buffer;
  FAILS(FUSELINE_INVALID, "buffer is null", fuseline_adopt_buffer(session, stream, NULL, &none));
  if (!strcmp(device, "reference")) {
    FAILS(FUSELINE_INVALID, "", fuseline_lend(session, a, &lent, &buffer));
    FAILS(FUSELINE_INVALID, "has no PJRT buffers", fuseline_adopt_buffer(session, stream, &none, &none));
  } else {
    OK(fuseline_lend(session, a, &lent, &buffer));
    IS(buffer);
    fuseline_lent_free(lent);
  }
  fuseline_lent_free(NULL);
  release(a);
}

static void sites(void) {
  const fuseline_site *one, *same, *other;
  OK(fuseline_site_of("train.py:1", &one));
  OK(fuseline_site_of("train.py:1", &same));
  OK(fuseline_site_of("train.py:2", &other));
  IS(one == same && one != other);
  fuseline_set_thread_site(one);
  fuseline_set_thread_site(NULL);
}

static void forks(void) {
  const float data[] = {1, 2};
  fuseline_value a = vector(data, 2);
  fflush(stdout);
  const pid_t child = fork();
  IS(child >= 0);
  if (child == 0) {
    float room[2];
    FAILS(FUSELINE_FORKED, "forked", fuseline_read(session, a, (uint8_t *)room, sizeof room));
    _exit(0);
  }
  int status;
  IS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  release(a);
}

int main(int argc, char **argv) {
  if (argc != 3) FAIL("seam DEVICE FOLDER");
  device = argv[1];
  session = open_session(new_config());
  OK(fuseline_stream_open(session, &stream));
#define PART(name, ...)                              \
  do {                                               \
    name(__VA_ARGS__);                               \
    if (fuseline_live_values(session)) FAIL("%s left %zu values", #name, fuseline_live_values(session)); \
    printf("%s\n", #name);                           \
  } while (0)
  PART(versions);
  PART(op_table);
  PART(settings);
  PART(values);
  PART(refused_data);
  PART(other_values);
  PART(attributes);
  PART(circular_attributes);
  PART(bodies);
  PART(stablehlo);
  PART(handlers);
  PART(traces);
  PART(modes);
  PART(callbacks);
  PART(threads);
  PART(streams);
  PART(events);
  PART(faults);
  PART(caches, argv[2]);
  PART(buffers);
  PART(sites);
  PART(forks);
  OK(fuseline_stream_close(session, stream));
  fuseline_session_close(session);
  printf("all\n");
  return 0;
}
