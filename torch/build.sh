#!/bin/sh
# temporary: build in place for development
set -e
cd "$(dirname "$0")"
PY=${PY:-/work/main/target/peers/torch/bin/python}
T=$($PY -c "import torch,os;print(os.path.dirname(torch.__file__))" 2>/dev/null)
ROOT=$(cd ..; pwd)
mkdir -p build
(cd $ROOT && CARGO_INCREMENTAL=0 cargo build --locked -p fuseline-torch 2>&1 | tail -2)
for f in csrc/*.cpp; do
  o=build/$(basename $f .cpp).o
  if [ ! -e $o ] || [ $f -nt $o ] || [ csrc/storage.h -nt $o ] || [ csrc/device.h -nt $o ] || [ csrc/engine.h -nt $o ]; then
    echo $f; g++ -O2 -g1 -std=c++20 -fPIC -fvisibility=hidden -Wall -D_GLIBCXX_USE_CXX11_ABI=1 -I$T/include -c $f -o $o &
    if [ $(jobs | wc -l) -ge 2 ]; then wait; fi
  fi
done
wait
g++ -shared -o torch_fuseline/libfuseline_torch_shim.so build/*.o -L$T/lib -ltorch_cpu -lc10 $ROOT/target/debug/libfuseline_torch.so -Wl,-rpath,$ROOT/target/debug -Wl,-z,defs -Wl,--no-as-needed
