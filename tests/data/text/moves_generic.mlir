"builtin.module"() <{sym_name = "jit_moves"}> ({
  "func.func"() <{arg_attrs = [{}], function_type = (tensor<3x4xf32>) -> (tensor<2x2xf32>, tensor<4x3xf32>, tensor<3x4xf32>, tensor<4x6xf32>, tensor<3x8xf32>, tensor<4x5xf32>, tensor<3x4xi8>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<2x2xf32>, tensor<3x4xf32>, tensor<3x4xi32>, tensor<2x2xf32>, tensor<150x2xf32>, tensor<130xi1>, tensor<2x3xi32>, tensor<3x4xf32>, tensor<3x3xf32>), res_attrs = [{jax.result_info = "result[0]"}, {jax.result_info = "result[1]"}, {jax.result_info = "result[2]"}, {jax.result_info = "result[3]"}, {jax.result_info = "result[4]"}, {jax.result_info = "result[5]"}, {jax.result_info = "result[6]"}, {jax.result_info = "result[7]"}, {jax.result_info = "result[8]"}, {jax.result_info = "result[9]"}, {jax.result_info = "result[10]"}, {jax.result_info = "result[11]"}, {jax.result_info = "result[12]"}, {jax.result_info = "result[13]"}, {jax.result_info = "result[14]"}, {jax.result_info = "result[15]"}, {jax.result_info = "result[16]"}, {jax.result_info = "result[17]"}], sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg3: tensor<3x4xf32>):
    %3 = "stablehlo.constant"() <{value = dense<[[0x7F800000, 0xFF800000], [1.000000e-10, -0.000000e+00]]> : tensor<2x2xf32>}> : () -> tensor<2x2xf32>
    %4 = "stablehlo.constant"() <{value = dense<"0x000000000000803F0000004000004040000080400000A0400000C0400000E0400000004100001041000020410000304100004041000050410000604100007041000080410000884100009041000098410000A0410000A8410000B0410000B8410000C0410000C8410000D0410000D8410000E0410000E8410000F0410000F84100000042000004420000084200000C4200001042000014420000184200001C4200002042000024420000284200002C4200003042000034420000384200003C4200004042000044420000484200004C4200005042000054420000584200005C4200006042000064420000684200006C4200007042000074420000784200007C42000080420000824200008442000086420000884200008A4200008C4200008E42000090420000924200009442000096420000984200009A4200009C4200009E420000A0420000A2420000A4420000A6420000A8420000AA420000AC420000AE420000B0420000B2420000B4420000B6420000B8420000BA420000BC420000BE420000C0420000C2420000C4420000C6420000C8420000CA420000CC420000CE420000D0420000D2420000D4420000D6420000D8420000DA420000DC420000DE420000E0420000E2420000E4420000E6420000E8420000EA420000EC420000EE420000F0420000F2420000F4420000F6420000F8420000FA420000FC420000FE420000004300000143000002430000034300000443000005430000064300000743000008430000094300000A4300000B4300000C4300000D4300000E4300000F430000104300001143000012430000134300001443000015430000164300001743000018430000194300001A4300001B4300001C4300001D4300001E4300001F430000204300002143000022430000234300002443000025430000264300002743000028430000294300002A4300002B4300002C4300002D4300002E4300002F430000304300003143000032430000334300003443000035430000364300003743000038430000394300003A4300003B4300003C4300003D4300003E4300003F430000404300004143000042430000434300004443000045430000464300004743000048430000494300004A4300004B4300004C4300004D4300004E4300004F430000504300005143000052430000534300005443000055430000564300005743000058430000594300005A4300005B4300005C4300005D4300005E4300005F430000604300006143000062430000634300006443000065430000664300006743000068430000694300006A4300006B4300006C4300006D4300006E4300006F430000704300007143000072430000734300007443000075430000764300007743000078430000794300007A4300007B4300007C4300007D4300007E4300007F43000080430080804300008143008081430000824300808243000083430080834300008443008084430000854300808543000086430080864300008743008087430000884300808843000089430080894300008A4300808A4300008B4300808B4300008C4300808C4300008D4300808D4300008E4300808E4300008F4300808F43000090430080904300009143008091430000924300809243000093430080934300009443008094430000954300809543"> : tensor<150x2xf32>}> : () -> tensor<150x2xf32>
    %5 = "stablehlo.constant"() <{value = dense<"0x01000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001000001"> : tensor<130xi1>}> : () -> tensor<130xi1>
    %6 = "stablehlo.slice"(%arg3) <{limit_indices = array<i64: 3, 3>, start_indices = array<i64: 0, 1>, strides = array<i64: 2, 1>}> : (tensor<3x4xf32>) -> tensor<2x2xf32>
    %7 = "stablehlo.transpose"(%arg3) <{permutation = array<i64: 1, 0>}> : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %8 = "func.call"(%arg3) <{callee = @_flip}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %9 = "stablehlo.constant"() <{value = dense<7.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %10 = "func.call"(%arg3, %9) <{callee = @_pad}> : (tensor<3x4xf32>, tensor<f32>) -> tensor<4x6xf32>
    %11 = "stablehlo.concatenate"(%arg3, %arg3) <{dimension = 1 : i64}> : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x8xf32>
    %12 = "stablehlo.constant"() <{value = dense<-1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %13 = "stablehlo.pad"(%arg3, %12) <{edge_padding_high = array<i64: -1, 2>, edge_padding_low = array<i64: 0, -1>, interior_padding = array<i64: 1, 0>}> : (tensor<3x4xf32>, tensor<f32>) -> tensor<4x5xf32>
    %14 = "stablehlo.convert"(%arg3) : (tensor<3x4xf32>) -> tensor<3x4xi8>
    %15 = "stablehlo.convert"(%arg3) : (tensor<3x4xf32>) -> tensor<3x4xbf16>
    %16 = "stablehlo.convert"(%15) : (tensor<3x4xbf16>) -> tensor<3x4xf32>
    %17 = "stablehlo.reduce_precision"(%arg3) <{exponent_bits = 5 : i32, mantissa_bits = 3 : i32}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %18 = "stablehlo.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
    %19 = "stablehlo.constant"() <{value = dense<2> : tensor<i32>}> : () -> tensor<i32>
    %20 = "stablehlo.dynamic_slice"(%arg3, %18, %19) <{slice_sizes = array<i64: 2, 2>}> : (tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<2x2xf32>
    %21 = "stablehlo.slice"(%arg3) <{limit_indices = array<i64: 1, 2>, start_indices = array<i64: 0, 0>, strides = array<i64: 1, 1>}> : (tensor<3x4xf32>) -> tensor<1x2xf32>
    %22 = "stablehlo.constant"() <{value = dense<2> : tensor<i32>}> : () -> tensor<i32>
    %23 = "stablehlo.constant"() <{value = dense<9> : tensor<i32>}> : () -> tensor<i32>
    %24 = "stablehlo.dynamic_update_slice"(%arg3, %21, %22, %23) : (tensor<3x4xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<3x4xf32>
    %25 = "stablehlo.bitcast_convert"(%arg3) : (tensor<3x4xf32>) -> tensor<3x4xi32>
    %26 = "stablehlo.iota"() <{iota_dimension = 0 : i64}> : () -> tensor<6xi32>
    %27 = "stablehlo.reshape"(%26) : (tensor<6xi32>) -> tensor<2x3xi32>
    %28 = "stablehlo.constant"() <{value = dense<-1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %29 = "stablehlo.constant"() <{value = dense<1.000000e+00> : tensor<f32>}> : () -> tensor<f32>
    %30 = "stablehlo.broadcast_in_dim"(%28) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<3x4xf32>
    %31 = "stablehlo.broadcast_in_dim"(%29) <{broadcast_dimensions = array<i64>}> : (tensor<f32>) -> tensor<3x4xf32>
    %32 = "stablehlo.clamp"(%30, %arg3, %31) : (tensor<3x4xf32>, tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %33 = "stablehlo.dot_general"(%arg3, %arg3) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}> : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x3xf32>
    "func.return"(%6, %7, %8, %10, %11, %13, %14, %16, %17, %20, %24, %25, %3, %4, %5, %27, %32, %33) : (tensor<2x2xf32>, tensor<4x3xf32>, tensor<3x4xf32>, tensor<4x6xf32>, tensor<3x8xf32>, tensor<4x5xf32>, tensor<3x4xi8>, tensor<3x4xf32>, tensor<3x4xf32>, tensor<2x2xf32>, tensor<3x4xf32>, tensor<3x4xi32>, tensor<2x2xf32>, tensor<150x2xf32>, tensor<130xi1>, tensor<2x3xi32>, tensor<3x4xf32>, tensor<3x3xf32>) -> ()
  }) : () -> ()
  "func.func"() <{arg_attrs = [{}], function_type = (tensor<3x4xf32>) -> tensor<3x4xf32>, res_attrs = [{}], sym_name = "_flip", sym_visibility = "private"}> ({
  ^bb0(%arg2: tensor<3x4xf32>):
    %2 = "stablehlo.reverse"(%arg2) <{dimensions = array<i64: 0, 1>}> : (tensor<3x4xf32>) -> tensor<3x4xf32>
    "func.return"(%2) : (tensor<3x4xf32>) -> ()
  }) : () -> ()
  "func.func"() <{arg_attrs = [{}, {}], function_type = (tensor<3x4xf32>, tensor<f32>) -> tensor<4x6xf32>, res_attrs = [{}], sym_name = "_pad", sym_visibility = "private"}> ({
  ^bb0(%arg0: tensor<3x4xf32>, %arg1: tensor<f32>):
    %0 = "stablehlo.convert"(%arg1) : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.pad"(%arg0, %0) <{edge_padding_high = array<i64: 0, 2>, edge_padding_low = array<i64: 1, 0>, interior_padding = array<i64: 0, 0>}> : (tensor<3x4xf32>, tensor<f32>) -> tensor<4x6xf32>
    "func.return"(%1) : (tensor<4x6xf32>) -> ()
  }) : () -> ()
}) {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} : () -> ()
