//! The PJRT layer on the real plugin: uploads and downloads, programs, options, errors.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use fuseline::pjrt::{
    AlignedBytes, Buffer, Client, Code, CompileOptions, ExecuteOptions, ExternalReference, HostData,
    HostSemantics, Value, ZERO_COPY_ALIGN, bytes_of, counters,
};
use fuseline_fusion::{DType, DTypeClass, DTypeSet, Element, TensorType};
use half::{bf16, f16};

use crate::fixtures::*;

const PLAIN: ExecuteOptions<'_> = ExecuteOptions {
    non_donatable: &[],
    launch_id: 0,
    call_location: None,
    device: None,
    want_completion_event: false,
};
const WITH_EVENT: ExecuteOptions<'_> = ExecuteOptions { want_completion_event: true, ..PLAIN };

#[test]
fn a_plugin_says_who_it_is() {
    let Some(plugin) = plugin() else { return };
    assert!(plugin.path().is_file());
    assert_eq!(plugin.api_version().major, 0);
    if plugin.api_version().minor == 81 {
        assert_eq!(plugin.version_notes(), Vec::<String>::new());
        let names: Vec<_> = plugin.extensions().iter().filter_map(|extension| extension.name).collect();
        assert!(names.contains(&"Layouts") && names.contains(&"FFI"), "{names:?}");
        assert_eq!(plugin.stablehlo_current_version(), Some([1, 13, 3]));
        assert_eq!(plugin.attribute("xla_version"), Some(&Value::Int(2)));
    }
    assert_eq!(plugin.attribute("no such attribute"), None);
}

#[test]
fn a_client_lists_devices_and_memories() {
    let Some(client) = client(8) else { return };
    assert_eq!(client.platform_name(), "cpu");
    assert_eq!(client.process_index(), 0);
    assert_eq!(client.devices().len(), 8);
    assert_eq!(client.addressable_devices(), client.devices());
    for (index, device) in client.devices().iter().enumerate() {
        assert_eq!(device.id(), index as i64);
        assert_eq!(client.device(device.id()).as_ref(), Some(device));
        assert_eq!(device.kind(), "cpu");
        assert_eq!(device.process_index(), 0);
        assert!(!device.debug_string().expect("a line").is_empty());
        assert!(device.attributes().is_ok());
        let memory = device.default_memory().expect("a default memory");
        assert!(device.memories().contains(&memory));
        assert_eq!(memory.devices().expect("its devices"), std::slice::from_ref(device));
        assert_eq!(memory.kind(), "device");
    }
    assert_eq!(client.device(99), None);
    // XLA:CPU has no memory statistics, and must say so.
    assert!(client.devices()[0].memory_stats().expect_err("not counted").is_unimplemented());
    let ids: Vec<_> = client.memories().iter().map(|memory| memory.id()).collect();
    assert_eq!(ids.len(), 24);
    assert!(client.memories()[0].debug_string().is_ok());
}

/// All byte values as bit patterns, special values included.
fn bits<T: Element>(n: usize) -> Vec<T> {
    let mut choices = Choices(n as u64);
    (0..n)
        .map(|_| {
            let bytes: Vec<u8> = (0..T::DTYPE.size()).map(|_| choices.below(256) as u8).collect();
            if T::DTYPE == DType::Bool { T::read_le(&[bytes[0] & 1]) } else { T::read_le(&bytes) }
        })
        .collect()
}

fn there_and_back<T: Element>(client: &Client) {
    for dims in [&[][..], &[1], &[7], &[3, 5], &[2, 3, 4, 5], &[0], &[2, 0, 3], &[1; 9]] {
        let ty = ty::<T>(dims);
        let data = bits::<T>(ty.elems().get());
        let buffer = upload(client, dims, &data);
        assert_eq!((buffer.ty(), buffer.dtype(), buffer.dims()), (&ty, T::DTYPE, dims));
        assert_eq!(buffer.to_host().expect("read"), bytes_of(&data), "{ty}");
        let copy = buffer.to_host_async().expect("start");
        assert_eq!(copy.wait().expect("read"), bytes_of(&data), "{ty}, through the plugin");
        let storage = vec![0xee; 10_000];
        let start = storage.as_ptr();
        let bytes = buffer.to_host_in(storage).expect("read");
        assert_eq!((bytes.as_slice(), bytes.as_ptr()), (bytes_of(&data), start), "{ty}, reusing memory");
        let read = buffer.read(|bytes| T::read_all_le(&bytes));
        assert_eq!(bytes_of(&read.expect("read")), bytes_of(&data), "{ty}, in the plugin's memory");
        let (send, receive) = mpsc::channel();
        buffer.to_host_async().expect("start").on_ready(move |bytes| drop(send.send(bytes)));
        let bytes = receive.recv_timeout(Duration::from_secs(10)).expect("called").expect("read");
        assert_eq!(bytes, bytes_of(&data), "{ty}, by callback");
        assert_eq!(buffer.on_device_size().expect("a size"), ty.bytes().0);
    }
}

#[test]
fn every_dtype_comes_back_as_it_went() {
    let Some(client) = client(1) else { return };
    there_and_back::<bool>(&client);
    there_and_back::<i8>(&client);
    there_and_back::<i16>(&client);
    there_and_back::<i32>(&client);
    there_and_back::<i64>(&client);
    there_and_back::<u8>(&client);
    there_and_back::<u16>(&client);
    there_and_back::<u32>(&client);
    there_and_back::<u64>(&client);
    there_and_back::<f16>(&client);
    there_and_back::<bf16>(&client);
    there_and_back::<f32>(&client);
    there_and_back::<f64>(&client);
}

#[test]
fn every_dtype_goes_through_a_program() {
    let Some(client) = client(1) else { return };
    for dtype in DType::ALL {
        let element = dtype.stablehlo();
        let module = format!(
            "module @same {{ func.func public @main(%a: tensor<2x3x{element}>) -> (tensor<3x2x{element}>) {{ \
             %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3x{element}>) -> tensor<3x2x{element}> \
             return %0 : tensor<3x2x{element}> }} }}"
        );
        let executable = client.compile(module, &CompileOptions::new()).expect("compiles");
        let from = TensorType::of(dtype, &[2, 3]).expect("small");
        let to = TensorType::of(dtype, &[3, 2]).expect("small");
        assert_eq!(executable.parameters(), Some(std::slice::from_ref(&from)), "{dtype}");
        assert_eq!(executable.outputs(), std::slice::from_ref(&to), "{dtype}");
        let size = dtype.size();
        // Within the range of the shortest types: two values that differ in every bit of those
        // types.
        let byte = |i: usize| match dtype.bits() {
            8.. => i as u8,
            1 => i as u8 % 2,
            bits if dtype.class() == DTypeClass::Signed => {
                if i.is_multiple_of(2) {
                    0u8.wrapping_sub(1 << (bits - 1))
                } else {
                    (1 << (bits - 1)) - 1
                }
            }
            bits => i as u8 & ((1 << bits) - 1),
        };
        let data: Vec<u8> = (0..6 * size).map(byte).collect();
        let buffer = client.buffer_from_host(&from, &data, &client.devices()[0]).expect("a buffer");
        let output = &executable.execute(&[&buffer], &PLAIN).expect("runs").outputs[0];
        let wanted: Vec<u8> =
            [0, 3, 1, 4, 2, 5].iter().flat_map(|i| data[i * size..(i + 1) * size].to_vec()).collect();
        assert_eq!(output.to_host().expect("read"), wanted, "{dtype}");
        assert_eq!(output.read(|bytes| bytes.into_owned()).expect("read"), wanted, "{dtype}");
    }
}

/// A read borrows data that the plugin keeps in the form of host data.
#[test]
fn host_memory_is_lent_to_a_reader() {
    let Some(client) = client(1) else { return };
    let is_borrowed = |buffer: &Buffer| buffer.read(|bytes| matches!(bytes, Cow::Borrowed(_)));
    let plain = upload(&client, &[2, 3], &[0.5f32; 6]);
    assert!(is_borrowed(&plain).expect("read"));
    let narrow = TensorType::of(DType::I4, &[2]).expect("small");
    let narrow = client.buffer_from_host(&narrow, &[1, 0xff], &client.devices()[0]).expect("a buffer");
    assert!(!is_borrowed(&narrow).expect("read"), "its upper bits are undefined");
    assert_eq!(narrow.read(|bytes| bytes.into_owned()).expect("read"), [1, 0xff]);
}

/// The plugin writes the bits of a single short element, and leaves the higher bits of the byte
/// unchanged.
#[test]
fn a_single_short_element_is_read_alone() {
    let Some(client) = client(1) else { return };
    for dtype in DTypeSet::NARROW.iter() {
        let one = TensorType::of(dtype, &[1]).expect("small");
        let tensor = format!("tensor<1x{}>", dtype.stablehlo());
        let module = format!(
            "module @twice {{ func.func public @main(%a: {tensor}) -> {tensor} {{ \
             %0 = stablehlo.add %a, %a : {tensor} return %0 : {tensor} }} }}"
        );
        let executable = client.compile(module, &CompileOptions::new()).expect("compiles");
        // 1 and 1 in two bits, signed or not, has the pattern of 2; 0.5 and 0.5 in `f4E2M1FN` has
        // that of 1.0.
        let wanted = if dtype == DType::I2 { -2i8 as u8 } else { 2 };
        for _ in 0..64 {
            let junk = client.buffer_from_host(&ty::<u8>(&[64]), &[0xff; 64], &client.devices()[0]);
            drop(junk.expect("a buffer"));
            let buffer = client.buffer_from_host(&one, &[1], &client.devices()[0]).expect("a buffer");
            let output = &executable.execute(&[&buffer], &PLAIN).expect("runs").outputs[0];
            assert_eq!(output.to_host().expect("read"), [wanted], "{dtype}");
            assert_eq!(output.read(|bytes| bytes.into_owned()).expect("read"), [wanted], "{dtype}");
            assert_eq!(output.to_host_async().expect("start").wait().expect("read"), [wanted], "{dtype}");
        }
    }
}

#[test]
fn host_data_that_cannot_be_is_refused() {
    let (Some(client), Some(other)) = (client(1), client(1)) else { return };
    let device = &client.devices()[0];
    let error = client.buffer_from_host(&ty::<f32>(&[4]), &[0; 15], device).expect_err("one byte short");
    assert_eq!(error.message(), "f32[4] takes 16 bytes of data, but 15 were given");
    assert!(error.is_invalid_argument() && !error.is_from_plugin());
    let error = client.buffer_from_host(&ty::<bool>(&[3]), &[0, 1, 2], device).expect_err("not a bool");
    assert_eq!(error.message(), "element 2 of a bool tensor is 2; it must be 0 or 1");
    let error = client.buffer_from_host(&ty::<u8>(&[1]), &[0], &other.devices()[0]).expect_err("elsewhere");
    assert!(error.message().contains("another client"), "{error}");
    let memory = &other.memories()[0];
    assert!(client.buffer_from_host(&ty::<u8>(&[1]), &[0], memory).is_err());
    let owned = HostData::zero_copy(vec![0u8; 3]);
    assert!(client.buffer_from_owned(&ty::<u8>(&[4]), owned, device).is_err());
}

#[test]
fn buffers_go_to_every_memory_and_device() {
    let Some(client) = client(3) else { return };
    let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
    for memory in client.memories() {
        let buffer = client.buffer_from_host(&ty::<f32>(&[24]), bytes_of(&data), &memory).expect("a buffer");
        assert_eq!(buffer.memory().expect("a memory"), memory);
        assert_eq!(memory.devices().expect("devices"), [buffer.device()]);
        assert_eq!(download::<f32>(&buffer), data);
        let moved = upload(&client, &[24], &data).copy_to_memory(&memory).expect("a copy");
        assert_eq!(moved.memory().expect("a memory"), memory);
        assert_eq!(download::<f32>(&moved), data);
    }
    let buffer = upload(&client, &[4, 6], &data);
    for device in client.devices() {
        let copy = buffer.copy_to_device(&device).expect("a copy");
        assert_eq!((copy.device(), copy.ty()), (device, buffer.ty()));
        assert_eq!(download::<f32>(&copy), data);
    }
    let other = crate::fixtures::client(1).expect("there is a plugin");
    assert!(buffer.copy_to_device(&other.devices()[0]).is_err());
    assert!(buffer.copy_to_memory(&other.memories()[0]).is_err());
}

#[test]
fn reads_are_row_major_whatever_the_device_layout() {
    let Some(client) = client(1) else { return };
    let module = |mode: &str| {
        format!(
            "module @m {{ func.func public @main(%a: tensor<2x3x4xf32>) -> \
             (tensor<2x3x4xf32> {{mhlo.layout_mode = \"{mode}\"}}) {{ \
             %0 = stablehlo.add %a, %a : tensor<2x3x4xf32> return %0 : tensor<2x3x4xf32> }} }}"
        )
    };
    let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let doubled: Vec<f32> = data.iter().map(|x| x * 2.0).collect();
    let input = upload(&client, &[2, 3, 4], &data);
    for mode in ["{2,1,0}", "{0,1,2}", "{1,0,2}", "{0,2,1}"] {
        let executable = client.compile(module(mode), &CompileOptions::new()).expect("compiles");
        let output = &executable.execute(&[&input], &PLAIN).expect("runs").outputs[0];
        assert_eq!(download::<f32>(output), doubled, "{mode}");
        let bytes = output.to_host_async().expect("start").wait().expect("read");
        assert_eq!(elements::<f32>(&bytes), doubled, "{mode}, through the plugin");
    }
}

#[test]
fn zero_copy_aliases_aligned_data_and_nothing_else() {
    let Some(client) = client(1) else { return };
    let device = &client.devices()[0];
    let values: Vec<f32> = (0..1_000).map(|i| i as f32).collect();
    let mut bytes = vec![0; ZERO_COPY_ALIGN];
    bytes.extend_from_slice(bytes_of(&values));
    // Slices into an aligned block, some of them aligned.
    struct Slice(AlignedBytes, usize);
    impl AsRef<[u8]> for Slice {
        fn as_ref(&self) -> &[u8] {
            &self.0.as_ref()[self.1..][..4_000]
        }
    }
    for (offset, aliases) in [(ZERO_COPY_ALIGN, true), (ZERO_COPY_ALIGN - 4, false)] {
        let data = HostData::zero_copy(Slice(AlignedBytes::copy_of(&bytes), offset));
        let start = data.as_ptr();
        let buffer = client.buffer_from_owned(&ty::<f32>(&[1_000]), data, device).expect("a buffer");
        assert_eq!(buffer.aliases(start).expect("an address"), aliases, "at offset {offset}");
        assert_eq!(buffer.to_host().expect("read"), bytes[offset..][..4_000]);
    }
    let data = HostData::until_transferred(Slice(AlignedBytes::copy_of(&bytes), ZERO_COPY_ALIGN));
    let start = data.as_ptr();
    let buffer = client.buffer_from_owned(&ty::<f32>(&[1_000]), data, device).expect("a buffer");
    assert!(!buffer.aliases(start).expect("an address"), "transferred data is copied");
    assert_eq!(download::<f32>(&buffer), values);
    for semantics in
        [HostSemantics::UntilTransferred, HostSemantics::ZeroCopy, HostSemantics::MutableZeroCopy]
    {
        let data = HostData::elements(values.clone(), semantics);
        let buffer = client.buffer_from_owned(&ty::<f32>(&[1_000]), data, device).expect("a buffer");
        assert_eq!(download::<f32>(&buffer), values, "{semantics:?}");
    }
}

#[test]
fn adopted_memory_is_used_in_place_and_given_back_once() {
    let Some(client) = client(2) else { return };
    let device = &client.devices()[1];
    let mut memory = AlignedBytes::copy_of(bytes_of(&[1.0f32, 2.0, 3.0]));
    let pointer = memory.as_mut().as_mut_ptr();
    let (send, receive) = mpsc::channel();
    let on_delete = move || {
        drop(memory);
        send.send(()).expect("the test waits");
    };
    // SAFETY: the memory is aligned, complete, and lives until `on_delete` runs.
    let buffer =
        unsafe { client.adopt(pointer.cast(), &ty::<f32>(&[3]), device, on_delete) }.expect("adopted");
    assert_eq!(buffer.device(), *device);
    assert!(buffer.aliases(pointer).expect("an address"));
    assert_eq!(download::<f32>(&buffer), [1.0, 2.0, 3.0]);
    assert!(receive.try_recv().is_err(), "given back too early");
    drop(buffer);
    receive.recv_timeout(Duration::from_secs(10)).expect("given back");
    assert!(receive.recv().is_err(), "once");
}

#[test]
fn external_references_show_the_data_and_stop_donation() {
    let Some(client) = client(1) else { return };
    let buffer = Arc::new(upload(&client, &[1_000], &[1.5f32; 1_000]));
    let reference = ExternalReference::new(Arc::clone(&buffer)).expect("a reference");
    assert_eq!(reference.pointer().addr(), buffer.unsafe_pointer().expect("an address"));
    // SAFETY: the reference keeps 1,000 complete elements there, on a CPU.
    let data = unsafe { std::slice::from_raw_parts(reference.pointer().cast::<f32>(), 1_000) };
    assert_eq!(data, [1.5; 1_000]);
    let donating = client.compile(add_module(1_000, "tf.aliasing_output = 0 : i32"), &CompileOptions::new());
    let donating = donating.expect("compiles");
    let other = upload(&client, &[1_000], &[1.0f32; 1_000]);
    let output = &donating.execute(&[&buffer, &other], &PLAIN).expect("runs").outputs[0];
    assert_eq!(download::<f32>(output), [2.5; 1_000]);
    assert!(!buffer.is_deleted().expect("an answer"), "donated under a reference");
    assert_eq!(data, [1.5; 1_000], "overwritten under a reference");
    drop(reference);
    drop(donating.execute(&[&buffer, &other], &PLAIN).expect("runs"));
    assert!(buffer.is_deleted().expect("an answer"), "not donated without a reference");
    assert!(ExternalReference::new(&*buffer).is_err(), "a reference on a donated buffer");
}

#[test]
fn a_program_runs_and_tells_its_signature() {
    let Some(client) = client(1) else { return };
    let module = "module @both { func.func public @main(%a: tensor<2x2xf32>, %b: tensor<i64>) \
                  -> (tensor<2x2xf32>, tensor<i64>, tensor<i1>) { \
                  %0 = stablehlo.tanh %a : tensor<2x2xf32> \
                  %1 = stablehlo.add %b, %b : tensor<i64> \
                  %2 = stablehlo.compare EQ, %b, %1 : (tensor<i64>, tensor<i64>) -> tensor<i1> \
                  return %0, %1, %2 : tensor<2x2xf32>, tensor<i64>, tensor<i1> } }";
    let executable = client.compile(module, &CompileOptions::new()).expect("compiles");
    assert_eq!(executable.parameters(), Some(&[ty::<f32>(&[2, 2]), ty::<i64>(&[])][..]));
    assert_eq!(executable.outputs(), [ty::<f32>(&[2, 2]), ty::<i64>(&[]), ty::<bool>(&[])]);
    assert_eq!(executable.num_outputs(), 3);
    assert_eq!(executable.num_replicas().expect("a number"), 1);
    assert_eq!(executable.num_partitions().expect("a number"), 1);
    assert_eq!(executable.addressable_devices(), client.devices());
    let a = upload(&client, &[2, 2], &[0.0f32, 0.5, 1.0, 2.0]);
    let b = upload(&client, &[], &[21i64]);
    let location = Some(c"model.rs:7");
    let options = ExecuteOptions { call_location: location, launch_id: 3, ..WITH_EVENT };
    let run = executable.execute(&[&a, &b], &options).expect("runs");
    run.done.as_ref().expect("asked for").wait().expect("succeeds");
    let tanh = download::<f32>(&run.outputs[0]);
    assert!((tanh[2] - 1.0f32.tanh()).abs() < 1e-6, "{tanh:?}");
    assert_eq!(download::<i64>(&run.outputs[1]), [42]);
    assert_eq!(download::<bool>(&run.outputs[2]), [false]);
    assert!(executable.execute(&[&a, &b], &PLAIN).expect("runs").done.is_none(), "not asked for");
}

#[test]
fn a_program_without_arguments_and_one_with_many() {
    let Some(client) = client(1) else { return };
    let module = "module @c { func.func public @main() -> tensor<2xi32> { \
                  %0 = stablehlo.constant dense<[4, 5]> : tensor<2xi32> return %0 : tensor<2xi32> } }";
    let executable = client.compile(module, &CompileOptions::new()).expect("compiles");
    let run = executable.execute(&[], &PLAIN).expect("runs");
    assert_eq!(download::<i32>(&run.outputs[0]), [4, 5]);
    // More than the on-stack lists can hold.
    let parameters: Vec<_> = (0..100).map(|i| format!("%a{i}: tensor<i32>")).collect();
    let results: Vec<_> = (0..100).map(|i| format!("%a{}", 99 - i)).collect();
    let types = vec!["tensor<i32>"; 100].join(", ");
    let module = format!(
        "module @many {{ func.func public @main({}) -> ({types}) {{ return {} : {types} }} }}",
        parameters.join(", "),
        results.join(", ")
    );
    let executable = client.compile(module, &CompileOptions::new()).expect("compiles");
    let arguments: Vec<_> = (0..100i32).map(|i| upload(&client, &[], &[i])).collect();
    let run = executable.execute(&arguments.iter().collect::<Vec<_>>(), &PLAIN).expect("runs");
    for (index, output) in run.outputs.iter().enumerate() {
        assert_eq!(download::<i32>(output), [99 - index as i32]);
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_the_plugin_sees_them() {
    let (Some(client), Some(other)) = (client(1), client(1)) else { return };
    let executable = add(&client, 16);
    let good = upload(&client, &[16], &[1.0f32; 16]);
    let refused = |arguments: &[&Buffer], options: &ExecuteOptions<'_>, words: &str| {
        let error = executable.execute(arguments, options).expect_err(words);
        assert!(!error.is_from_plugin(), "the plugin was asked: {error}");
        assert_eq!((error.code(), error.message()), (Code::InvalidArgument, words));
        assert_eq!(error.function(), "PJRT_LoadedExecutable_Execute");
    };
    refused(&[], &PLAIN, "add takes 2 arguments, but 0 were given");
    refused(&[&good], &PLAIN, "add takes 2 arguments, but 1 were given");
    refused(&[&good, &good, &good], &PLAIN, "add takes 2 arguments, but 3 were given");
    // XLA:CPU compares sizes only, and would add these bits as floats.
    let ints = upload(&client, &[16], &[1i32; 16]);
    refused(&[&good, &ints], &PLAIN, "argument 1 of add is i32[16], but the parameter is f32[16]");
    let square = upload(&client, &[4, 4], &[1.0f32; 16]);
    refused(&[&square, &good], &PLAIN, "argument 0 of add is f32[4, 4], but the parameter is f32[16]");
    let foreign = upload(&other, &[16], &[1.0f32; 16]);
    refused(&[&good, &foreign], &PLAIN, "argument 1 of add belongs to another client than the executable");
    for veto in [&[2][..], &[-1], &[0, 7]] {
        let words = format!(
            "add has 2 arguments, but the non-donatable ones include an index out of range: {veto:?}"
        );
        refused(&[&good, &good], &ExecuteOptions { non_donatable: veto, ..PLAIN }, &words);
    }
    let device = &other.devices()[0];
    let words = "the device belongs to another client than the executable";
    refused(&[&good, &good], &ExecuteOptions { device: Some(device), ..PLAIN }, words);
    let error = executable.execute_on_all(&[], &PLAIN).expect_err("no lists");
    assert_eq!(error.message(), "the call has 0 argument lists for 1 devices");
    assert!(executable.execute_on_all(&[&[&good]], &PLAIN).is_err());
}

#[test]
fn compile_errors_carry_the_plugins_words() {
    let Some(client) = client(1) else { return };
    let error = client.compile("module { nonsense }", &CompileOptions::new()).expect_err("not a module");
    assert!(error.is_from_plugin());
    assert!(error.message().contains("custom op 'nonsense' is unknown"), "{error}");
    assert_eq!(error.function(), "PJRT_Client_Compile");
    for module in ["", "\0\0\0\0", "module @m { func.func public @main() -> tensor<2xf32> { } }"] {
        assert!(client.compile(module, &CompileOptions::new()).is_err(), "{module:?}");
    }
    // A token is not among the element types.
    let token = "module @m { func.func public @main(%a: !stablehlo.token) -> !stablehlo.token { \
                 return %a : !stablehlo.token } }";
    let error = client.compile(token, &CompileOptions::new()).expect_err("an unknown type");
    assert!(error.is_unimplemented() && !error.is_from_plugin(), "{error}");
}

#[test]
fn flags_are_typed() {
    let Some(client) = client(1) else { return };
    let compile = |options: CompileOptions| client.compile(add_module(4, ""), &options);
    let eigen = "xla_cpu_multi_thread_eigen";
    compile(CompileOptions::new().flag(eigen, false)).expect("a bool is a bool");
    for wrong in [fuseline::pjrt::Flag::from("false"), 0i64.into()] {
        let error = compile(CompileOptions::new().flag(eigen, wrong)).expect_err("not a bool");
        assert!(error.is_from_plugin() && error.message().contains(eigen), "{error}");
    }
    let error = compile(CompileOptions::new().flag("xla_no_such_flag", true)).expect_err("no such flag");
    assert!(error.message().contains("xla_no_such_flag"), "{error}");
    compile(CompileOptions::new().flag("xla_backend_optimization_level", 0i64)).expect("an integer");
    let (name, value) = ("xla_cpu_experimental_xnn_graph_fusion_mode", "XNN_GRAPH_FUSION_MODE_DISABLED");
    compile(CompileOptions::new().flag(name, value)).expect("an enum by name");
}

#[test]
fn executables_tell_what_they_cost() {
    let Some(client) = client(1) else { return };
    let executable = add(&client, 1_024);
    let stats = executable.memory_stats().expect("statistics");
    assert_eq!((stats.arguments, stats.outputs, stats.aliased), (8_192, 4_096, 0));
    if executable.client().plugin().api_version().minor >= 81 {
        assert_eq!(stats.peak, Some(12_288));
    }
    let donating = client.compile(add_module(1_024, "tf.aliasing_output = 0 : i32"), &CompileOptions::new());
    assert_eq!(donating.expect("compiles").memory_stats().expect("statistics").aliased, 4_096);
    match executable.cost_analysis() {
        Ok(cost) => assert!(cost.contains(&("flops".into(), Value::Float(1_024.0))), "{cost:?}"),
        Err(error) => {
            let minor = executable.client().plugin().api_version().minor;
            assert!(error.code() == Code::Unimplemented && minor > 81, "API 0.{minor}: {error}");
        }
    }
    assert!(!executable.fingerprint().expect("a fingerprint").is_empty());
    assert!(executable.generated_code_size().expect("a size") >= 0);
    let program = executable.optimized_program().expect("a program");
    assert!(program.format.starts_with("hlo") && !program.bytes.is_empty());
}

#[test]
fn executables_survive_serialisation() {
    let Some(client) = client(2) else { return };
    let bytes = add(&client, 16).serialize().expect("bytes");
    // SAFETY: these are the bytes of the line above.
    let loaded = unsafe { client.deserialize(&bytes, None) }.expect("loads");
    assert_eq!(loaded.parameters(), Some(&[ty::<f32>(&[16]), ty::<f32>(&[16])][..]));
    let a = upload(&client, &[16], &[2.0f32; 16]);
    assert_eq!(download::<f32>(&loaded.execute(&[&a, &a], &PLAIN).expect("runs").outputs[0]), [4.0; 16]);
    // SAFETY: as above.
    let moved = unsafe { client.deserialize(&bytes, Some(&CompileOptions::new().device(1))) }.expect("loads");
    assert_eq!(moved.addressable_devices(), [client.devices()[1].clone()]);
    for damaged in [&bytes[..0], &bytes[..100]] {
        // SAFETY: a truncated header is refused before any code is run.
        let error = unsafe { client.deserialize(damaged, None) }.expect_err("damaged");
        assert!(error.is_from_plugin(), "{error}");
    }
}

#[test]
fn donated_memory_is_reused_and_the_donor_is_an_error_to_use() {
    let Some(client) = client(2) else { return };
    let n = 65_536;
    let new = || upload(&client, &[n as u64], &vec![1.0f32; n]);
    for attribute in ["tf.aliasing_output = 0 : i32", "jax.buffer_donor = true"] {
        let executable = client.compile(add_module(n, attribute), &CompileOptions::new()).expect("compiles");
        let (donor, other) = (new(), new());
        let address = donor.unsafe_pointer().expect("an address");
        let output = &executable.execute(&[&donor, &other], &PLAIN).expect("runs").outputs[0];
        assert_eq!(output.unsafe_pointer().expect("an address"), address, "{attribute}: copied");
        assert_eq!(download::<f32>(output), vec![2.0; n]);
        // Every use of the donor is an error from the plugin; its metadata stays available.
        assert!(donor.is_deleted().expect("an answer"));
        assert_eq!((donor.dims(), donor.device()), (&[n as u64][..], client.devices()[0].clone()));
        assert!(donor.to_host().is_err());
        assert!(donor.to_host_async().and_then(|copy| copy.wait()).is_err());
        assert!(donor.unsafe_pointer().is_err());
        assert!(donor.copy_to_device(&client.devices()[1]).is_err());
        assert!(donor.ready_event().expect("an event").wait().is_err());
        assert!(donor.delete().is_ok());
        for arguments in [[&donor, &other], [&other, &donor]] {
            let error = executable.execute(&arguments, &PLAIN).expect_err("donated");
            assert!(error.message().contains("deleted or donated"), "{error}");
        }
        assert!(!other.is_deleted().expect("an answer"), "donated by a call that failed");
        // With a veto nothing is donated, and the same buffer may be passed twice.
        let veto = ExecuteOptions { non_donatable: &[0], ..PLAIN };
        let output = &executable.execute(&[&other, &other], &veto).expect("runs").outputs[0];
        assert_eq!(download::<f32>(output), vec![2.0; n]);
        assert!(!other.is_deleted().expect("an answer"));
        let error = executable.execute(&[&other, &other], &PLAIN).expect_err("donated and read");
        assert!(error.message().contains("donate"), "{error}");
        assert!(!other.is_deleted().expect("an answer"));
        // A copy that was started before is not affected.
        let copy = other.to_host_async().expect("start");
        drop(executable.execute(&[&other, &new()], &PLAIN).expect("runs"));
        assert_eq!(elements::<f32>(&copy.wait().expect("read")), vec![1.0; n]);
    }
}

#[test]
fn only_mutable_host_data_is_overwritten_by_donation() {
    let Some(client) = client(1) else { return };
    let n = 1_024;
    let device = &client.devices()[0];
    let executable = client.compile(add_module(n, "tf.aliasing_output = 0 : i32"), &CompileOptions::new());
    let executable = executable.expect("compiles");
    let ones = upload(&client, &[n as u64], &vec![1.0f32; n]);
    let shared = Arc::new(AlignedBytes::copy_of(bytes_of(&vec![1.0f32; n])));
    struct Shared(Arc<AlignedBytes>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            (*self.0).as_ref()
        }
    }
    for (mutable, reused) in [(false, false), (true, true)] {
        let data = match mutable {
            false => HostData::zero_copy(Shared(Arc::clone(&shared))),
            true => HostData::mutable_zero_copy((*shared).clone()),
        };
        let start = data.as_ptr();
        let buffer = client.buffer_from_owned(&ty::<f32>(&[n as u64]), data, device).expect("a buffer");
        assert!(buffer.aliases(start).expect("an address"));
        let output = &executable.execute(&[&buffer, &ones], &PLAIN).expect("runs").outputs[0];
        assert_eq!(download::<f32>(output), vec![2.0; n]);
        assert_eq!(output.aliases(start).expect("an address"), reused, "mutable: {mutable}");
    }
    assert_eq!((*shared).as_ref(), bytes_of(&vec![1.0f32; n]), "immutable data was overwritten");
}

#[test]
fn deleted_buffers_are_errors() {
    let Some(client) = client(1) else { return };
    let buffer = upload(&client, &[16], &[1.0f32; 16]);
    let early = buffer.ready_event().expect("an event");
    buffer.delete().expect("deleted");
    buffer.delete().expect("twice is no error");
    assert!(buffer.is_deleted().expect("an answer"));
    early.wait().expect("taken before the delete");
    // A failed event fails on every query, whether or not the first query asks if it is ready.
    let failed = buffer.ready_event().expect("an event");
    assert!(failed.is_ready().expect("an answer"));
    for _ in 0..3 {
        let error = failed.wait().expect_err("deleted");
        assert!(error.is_from_plugin() && error.message().contains("deleted"), "{error}");
    }
    let (send, receive) = mpsc::channel();
    failed.on_ready(move |outcome| drop(send.send(outcome)));
    let outcome = receive.recv_timeout(Duration::from_secs(10)).expect("called");
    assert!(outcome.expect_err("deleted").message().contains("deleted"));
    let error = add(&client, 16).execute(&[&buffer, &buffer], &PLAIN).expect_err("deleted");
    assert!(error.is_from_plugin() && error.message().contains("deleted"), "{error}");
}

#[test]
fn programs_run_on_the_device_they_are_told() {
    let Some(client) = client(8) else { return };
    let third = &client.devices()[3];
    let data = [1.0f32; 16];
    let here = upload(&client, &[16], &data);
    let there = client.buffer_from_host(&ty::<f32>(&[16]), bytes_of(&data), third).expect("a buffer");
    // Compiled for the device.
    let bound = client.compile(add_module(16, ""), &CompileOptions::new().device(3)).expect("compiles");
    assert_eq!(bound.addressable_devices(), std::slice::from_ref(third));
    let output = &bound.execute(&[&there, &there], &PLAIN).expect("runs").outputs[0];
    assert_eq!((output.device(), download::<f32>(output)), (third.clone(), vec![2.0; 16]));
    let error = bound.execute(&[&here, &there], &PLAIN).expect_err("an argument elsewhere");
    // The name of the device depends on the version.
    let names_device = ["TFRT_CPU_0", "cpu:0"].iter().any(|name| error.message().contains(name));
    assert!(error.is_from_plugin() && names_device, "{error}");
    let named = ExecuteOptions { device: Some(&client.devices()[2]), ..PLAIN };
    assert!(bound.execute(&[&there, &there], &named).is_err(), "bound to another device");
    // Compiled for no specific device.
    let portable =
        client.compile(add_module(16, ""), &CompileOptions::new().portable(true)).expect("compiles");
    assert!(portable.addressable_devices().is_empty());
    let named = ExecuteOptions { device: Some(third), ..WITH_EVENT };
    let run = portable.execute(&[&there, &there], &named).expect("runs");
    run.done.expect("asked for").wait().expect("succeeds");
    assert_eq!(run.outputs[0].device(), *third);
    assert_eq!(
        run.outputs[0].memory().expect("a memory").devices().expect("devices"),
        std::slice::from_ref(third)
    );
    let error = portable.execute(&[&there, &there], &PLAIN).expect_err("no device");
    assert_eq!(error.message(), "add is bound to no device; name one");
}

#[test]
fn replicas_reduce_over_devices() {
    let Some(client) = client(8) else { return };
    let module = "module @sum attributes {mhlo.num_replicas = 2 : i32} { \
        func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> { \
        %0 = \"stablehlo.all_reduce\"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>): \
        %s = stablehlo.add %x, %y : tensor<f32> stablehlo.return %s : tensor<f32> }) \
        {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> tensor<4xf32> \
        return %0 : tensor<4xf32> } }";
    let options = CompileOptions::new().devices(2, 1, &[5, 2]).expect("two devices");
    let executable = client.compile(module, &options).expect("compiles");
    assert_eq!(executable.num_replicas().expect("a number"), 2);
    let devices = executable.addressable_devices();
    assert_eq!(devices.iter().map(|device| device.id()).collect::<Vec<_>>(), [5, 2]);
    for round in 0..20 {
        let inputs: Vec<_> = devices
            .iter()
            .zip([1.0f32, 10.0])
            .map(|(device, x)| {
                let data = [x + round as f32; 4];
                client.buffer_from_host(&ty::<f32>(&[4]), bytes_of(&data), device).expect("a buffer")
            })
            .collect();
        let runs = executable.execute_on_all(&[&[&inputs[0]], &[&inputs[1]]], &WITH_EVENT).expect("runs");
        assert_eq!(runs.len(), 2);
        for (run, device) in runs.iter().zip(&devices) {
            run.done.as_ref().expect("asked for").wait().expect("succeeds");
            assert_eq!(run.outputs[0].device(), *device);
            assert_eq!(download::<f32>(&run.outputs[0]), [11.0 + 2.0 * round as f32; 4]);
        }
    }
    let one = client.buffer_from_host(&ty::<f32>(&[4]), &[0; 16], &devices[0]).expect("a buffer");
    let error = executable.execute(&[&one], &PLAIN).expect_err("several devices");
    assert_eq!(error.message(), "sum is bound to several devices; run it on all, or name one");
    assert!(executable.execute_on_all(&[&[&one]], &PLAIN).is_err(), "one list for two devices");
    let named = ExecuteOptions { device: Some(&devices[0]), ..PLAIN };
    assert!(executable.execute_on_all(&[&[&one], &[&one]], &named).is_err(), "a device for all");
}

#[test]
fn several_threads_share_everything() {
    let Some(client) = client(1) else { return };
    let executable = add(&client, 1_024);
    let base = upload(&client, &[1_024], &[1.0f32; 1_024]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (client, executable, base) = (&client, &executable, &base);
            scope.spawn(move || {
                for round in 0..200 {
                    let x = (thread * 1_000 + round) as f32;
                    let own = upload(client, &[1_024], &[x; 1_024]);
                    let run = executable.execute(&[base, &own], &WITH_EVENT).expect("runs");
                    let again = executable.execute(&[&run.outputs[0], base], &PLAIN).expect("runs");
                    assert_eq!(download::<f32>(&again.outputs[0]), [x + 2.0; 1_024]);
                }
            });
        }
    });
    assert_eq!(counters().destroy_errors, 0);
}

/// XLA keeps external references in an unlocked list, and aborts the process if one is lost.
#[test]
fn a_buffer_is_read_by_several_threads_at_once() {
    let Some(client) = client(1) else { return };
    for round in 0..300 {
        let data = [round as f32; 4];
        let buffer = upload(&client, &[2, 2], &data);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let reference = ExternalReference::new(&buffer).expect("shared");
                        assert!(!reference.pointer().is_null());
                        drop(reference);
                        assert_eq!(download::<f32>(&buffer), data);
                    }
                });
            }
        });
    }
}
