module @jit_composed attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x4xf32>) -> (tensor<3x4xf32> {jax.result_info = "result"}) {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<3x4xf32>
    %2 = stablehlo.composite "test.smooth" %1 {composite_attributes = {factor = 5.000000e-01 : f64}, decomposition = @test.smooth, version = 2 : i32} : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %3 = stablehlo.composite "test.smooth" %arg0 {composite_attributes = {factor = 3.000000e+00 : f64}, decomposition = @test.smooth_0, version = 2 : i32} : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %4 = stablehlo.add %2, %3 : tensor<3x4xf32>
    return %4 : tensor<3x4xf32>
  }
  func.func private @test.smooth(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %0 = stablehlo.abs %arg0 : tensor<3x4xf32>
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<3x4xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %4 = stablehlo.add %2, %3 : tensor<3x4xf32>
    %5 = stablehlo.divide %arg0, %4 : tensor<3x4xf32>
    return %5 : tensor<3x4xf32>
  }
  func.func private @test.smooth_0(%arg0: tensor<3x4xf32>) -> tensor<3x4xf32> {
    %0 = stablehlo.abs %arg0 : tensor<3x4xf32>
    %cst = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<3x4xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<3x4xf32>
    %4 = stablehlo.add %2, %3 : tensor<3x4xf32>
    %5 = stablehlo.divide %arg0, %4 : tensor<3x4xf32>
    return %5 : tensor<3x4xf32>
  }
}
