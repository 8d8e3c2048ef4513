/*
 * Fits a line by gradient descent, in plain C, as a front end uses the interface.
 *
 *   cargo xtask capi --prefix out
 *   cc -Iout/include capi/examples/descent.c -Lout/lib -lfuseline -Wl,-rpath,$PWD/out/lib \
 *     -o descent
 *   ./descent [reference | path of a PJRT plugin]
 */
#include <fuseline.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with the engine's message. */
static void check(fuseline_error *error) {
  if (!error) return;
  fprintf(stderr, "descent: %s\n", fuseline_error_message(error));
  exit(1);
}

#define COUNT 64

static fuseline_session *session;
static fuseline_stream stream;

/* Records an op with one result. Errors and events name `line`. */
static fuseline_value op(const char *name, const fuseline_attrs *attrs, size_t count, const fuseline_value *operands, const char *line) {
  fuseline_call call = {.struct_size = sizeof call, .attrs = attrs, .operands = operands, .num_operands = count};
  check(fuseline_op_find(name, &call.op));
  check(fuseline_site_of(line, &call.site));
  fuseline_value result;
  check(fuseline_record(session, stream, &call, &result, NULL, 1, NULL));
  return result;
}

#define TEXT(number) TEXT_OF(number)
#define TEXT_OF(number) #number
#define OP(name, attrs, ...)                                                                       \
  op(name, attrs, sizeof((fuseline_value[]){__VA_ARGS__}) / sizeof(fuseline_value),                \
     (fuseline_value[]){__VA_ARGS__}, "descent.c:" TEXT(__LINE__))

static void release(fuseline_value value) { check(fuseline_release(session, value)); }

int main(int argc, char **argv) {
  if (fuseline_abi_version() / 1000 != FUSELINE_ABI_VERSION / 1000 || fuseline_abi_version() < FUSELINE_ABI_VERSION) {
    fprintf(stderr, "descent: the library is older than the header\n");
    return 1;
  }
  fuseline_config *config;
  check(fuseline_config_new(&config));
  if (argc > 1) check(fuseline_config_set(config, "device", argv[1]));
  check(fuseline_session_open(config, &session));
  fuseline_config_free(config);
  check(fuseline_stream_open(session, &stream));

  /* y = 3 x - 1, with x from -1 to 1. */
  float x[COUNT], y[COUNT];
  for (int i = 0; i < COUNT; i++) {
    x[i] = 2.0f * i / (COUNT - 1) - 1;
    y[i] = 3 * x[i] - 1;
  }
  fuseline_tensor data = {.type = {.dtype = FUSELINE_F32, .rank = 1, .dims = {COUNT}}, .size = sizeof x};
  fuseline_value xs, ys, slope, offset;
  data.data = (const uint8_t *)x;
  check(fuseline_upload(session, stream, &data, &xs));
  data.data = (const uint8_t *)y;
  check(fuseline_upload(session, stream, &data, &ys));
  const float zero = 0;
  fuseline_tensor start = {.type = {.dtype = FUSELINE_F32}, .data = (const uint8_t *)&zero, .size = sizeof zero};
  check(fuseline_upload(session, stream, &start, &slope));
  check(fuseline_upload(session, stream, &start, &offset));

  /* Attributes are made once: a broadcast of a scalar to a vector, and the dimensions of a dot
   * product. */
  fuseline_op broadcast, dot;
  check(fuseline_op_find("broadcast_in_dim", &broadcast));
  check(fuseline_op_find("dot_general", &dot));
  const int64_t shape[] = {COUNT}, first[] = {0};
  const fuseline_attr all[] = {
      {.name = "shape", .kind = FUSELINE_ATTR_INTEGERS, .count = 1, .value.integers = shape},
      {.name = "broadcast_dimensions", .kind = FUSELINE_ATTR_INTEGERS},
  };
  const fuseline_attr dims[] = {
      {.name = "lhs_batching_dimensions", .kind = FUSELINE_ATTR_INTEGERS},
      {.name = "rhs_batching_dimensions", .kind = FUSELINE_ATTR_INTEGERS},
      {.name = "lhs_contracting_dimensions", .kind = FUSELINE_ATTR_INTEGERS, .count = 1, .value.integers = first},
      {.name = "rhs_contracting_dimensions", .kind = FUSELINE_ATTR_INTEGERS, .count = 1, .value.integers = first},
  };
  const fuseline_attr product[] = {
      {.name = "dot_dimension_numbers", .kind = FUSELINE_ATTR_ATTRS, .count = 4, .value.attrs = dims},
      {.name = "dtype", .kind = FUSELINE_ATTR_DTYPE, .value.integer = FUSELINE_F32},
  };
  fuseline_attrs *everywhere, *inner;
  check(fuseline_attrs_new(broadcast, all, 2, &everywhere));
  check(fuseline_attrs_new(dot, product, 2, &inner));

  for (int step = 0; step < 40; step++) {
    /* Each value is released after its last use. A value that nobody reads is never computed on its
     * own. */
    fuseline_value wide = OP("broadcast_in_dim", everywhere, slope);
    fuseline_value scaled = OP("multiply", NULL, wide, xs);
    fuseline_value shift = OP("broadcast_in_dim", everywhere, offset);
    fuseline_value guess = OP("add", NULL, scaled, shift);
    fuseline_value error = OP("subtract", NULL, guess, ys);
    fuseline_value rate, ones;
    check(fuseline_scalar(session, stream, FUSELINE_F32, 1.0 / COUNT, &rate));
    fuseline_value one;
    check(fuseline_scalar(session, stream, FUSELINE_F32, 1, &one));
    ones = OP("broadcast_in_dim", everywhere, one);
    fuseline_value to_slope = OP("dot_general", inner, error, xs);
    fuseline_value to_offset = OP("dot_general", inner, error, ones);
    fuseline_value loss = OP("dot_general", inner, error, error);
    fuseline_value slope_step = OP("multiply", NULL, to_slope, rate);
    fuseline_value offset_step = OP("multiply", NULL, to_offset, rate);
    fuseline_value new_slope = OP("subtract", NULL, slope, slope_step);
    fuseline_value new_offset = OP("subtract", NULL, offset, offset_step);
    /* In-place write: the ids of the parameters get the new values. */
    check(fuseline_replace(session, slope, new_slope));
    check(fuseline_replace(session, offset, new_offset));
    if (step % 10 == 9) {
      float value;
      check(fuseline_read(session, loss, (uint8_t *)&value, sizeof value));
      printf("step %d: loss %.5f\n", step + 1, value);
    } else {
      check(fuseline_flush(session, stream));
    }
    fuseline_value done[] = {wide, scaled, shift, guess, error, rate, one, ones, to_slope, to_offset, loss, slope_step, offset_step, new_slope, new_offset};
    for (size_t i = 0; i < sizeof done / sizeof *done; i++) release(done[i]);
  }

  float fitted[2];
  const fuseline_value parameters[] = {slope, offset};
  const fuseline_room rooms[] = {{(uint8_t *)&fitted[0], sizeof(float)}, {(uint8_t *)&fitted[1], sizeof(float)}};
  check(fuseline_read_all(session, parameters, rooms, 2));
  printf("y = %.3f x %+.3f\n", fitted[0], fitted[1]);

  const fuseline_value rest[] = {xs, ys, slope, offset};
  for (size_t i = 0; i < 4; i++) release(rest[i]);
  printf("%zu values left\n", fuseline_live_values(session));
  fuseline_attrs_free(everywhere);
  fuseline_attrs_free(inner);
  check(fuseline_stream_close(session, stream));
  fuseline_session_close(session);
  return 0;
}
