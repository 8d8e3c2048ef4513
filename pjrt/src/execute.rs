//! Runs executables.
//!
//! The hot path of the engine: one call of the plugin, no lock, and no heap allocation on our side
//! up to 64 arguments and 4 outputs (beyond them, one for each list).
//!
//! Arguments are checked first (client, number, types): a plugin may compare only sizes, and then
//! read bytes of another type as its own.

use std::ffi::CStr;

use pjrt_sys::*;
use smallvec::{SmallVec, smallvec};

use super::abi::Block;
use super::buffer::Buffer;
use super::device::Device;
use super::error::Error;
use super::event::Event;
use super::executable::{Executable, Inner};

const FUNCTION: &str = "PJRT_LoadedExecutable_Execute";

/// Options of one execution.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecuteOptions<'a> {
    /// Numbers of arguments that must not be donated although the module allows it. See [`Buffer`]
    /// on donation.
    pub non_donatable: &'a [i64],
    /// If not zero, the number of a launch in which several devices or processes take part. The
    /// plugin can detect by it that they disagree on the order.
    pub launch_id: i32,
    /// Call site in the user's program (`file:line`), for the plugin's messages. Plugins older than
    /// the field ignore it.
    pub call_location: Option<&'a CStr>,
    /// The device to run on, instead of the one(s) that it was compiled for. Not every plugin
    /// accepts another one unless the executable is portable.
    pub device: Option<&'a Device>,
    /// Requests [`Execution::done`], which costs 0.3 µs.
    pub want_completion_event: bool,
}

/// The result of an execution, while the device may still be computing.
#[derive(Debug)]
pub struct Execution {
    /// The outputs, in order. If the computation fails, waiting for any of them returns the error.
    pub outputs: SmallVec<[Buffer; 4]>,
    /// Ready when the device is done. `None` unless requested.
    pub done: Option<Event>,
}

impl Executable {
    /// Runs the executable on one device.
    ///
    /// Returns when the work is enqueued; a plugin may also run small programs before it returns.
    /// The arguments may be dropped at once. Arguments that the module marks for donation are
    /// donated, except the vetoed ones: see [`Buffer`].
    ///
    /// # Errors
    /// From this layer, before the plugin is called: arguments of another client, wrong in number
    /// or type, a veto on a missing argument, an impossible device. From the plugin: deleted or
    /// donated arguments, arguments on another device, out of memory. After an error nothing was
    /// run. Whether arguments were donated then depends on the plugin (XLA:CPU: no).
    pub fn execute(&self, args: &[&Buffer], options: &ExecuteOptions<'_>) -> Result<Execution, Error> {
        let inner = self.inner();
        inner.check(args, options.non_donatable)?;
        let device = match options.device {
            Some(device) => inner.check_device(device)?,
            None => inner.only_device()?,
        };
        let raw_args: SmallVec<[*mut PJRT_Buffer; 64]> = args.iter().map(|buffer| buffer.raw()).collect();
        let mut raw_outputs: SmallVec<[*mut PJRT_Buffer; 16]> =
            smallvec![std::ptr::null_mut(); self.num_outputs()];
        let mut done = std::ptr::null_mut();
        let mut options_block = inner.options(options);
        let mut call = inner.home.client.api().block::<PJRT_LoadedExecutable_Execute_Args>();
        let arg_list = raw_args.as_ptr();
        let output_list = raw_outputs.as_mut_ptr();
        call.executable = inner.raw.loaded.as_ptr();
        call.options = options_block.as_mut_ptr();
        call.argument_lists = &raw const arg_list;
        call.num_devices = 1;
        call.num_args = raw_args.len();
        call.output_lists = &raw const output_list;
        if options.want_completion_event {
            call.device_complete_events = &raw mut done;
        }
        if let Some(device) = options.device {
            call.execute_device = device.raw();
        }
        // SAFETY: holds because executable, arguments and device are alive and of one client, the
        // lists have their declared lengths, and all of them outlive the call.
        unsafe { inner.home.client.api().call(&mut call) }?;
        // SAFETY: holds because the call succeeded and gave us these objects.
        unsafe { inner.collect(&raw_outputs, done, device) }
    }

    /// Runs the executable on all devices of this process that it was compiled for. Takes one list
    /// of arguments for each, in the order of [`Executable::addressable_devices`], and returns one
    /// result for each.
    ///
    /// # Errors
    /// As [`Executable::execute`], and when the number of lists is wrong or
    /// [`ExecuteOptions::device`] is set.
    pub fn execute_on_all(
        &self,
        args: &[&[&Buffer]],
        options: &ExecuteOptions<'_>,
    ) -> Result<Vec<Execution>, Error> {
        let inner = self.inner();
        let devices = &inner.devices;
        if args.len() != devices.len() || devices.is_empty() {
            let text = format!("the call has {} argument lists for {} devices", args.len(), devices.len());
            return Err(Error::invalid(FUNCTION, text));
        }
        if options.device.is_some() {
            return Err(Error::invalid(
                FUNCTION,
                "the call names one device, but the executable runs on all of them",
            ));
        }
        for list in args {
            inner.check(list, options.non_donatable)?;
            // Types are known only for plugins that show the program; the C API has one length for
            // all lists.
            if list.len() != args[0].len() {
                return Err(Error::invalid(FUNCTION, "the argument lists differ in length"));
            }
        }
        let raw_args: Vec<Vec<_>> =
            args.iter().map(|list| list.iter().map(|buffer| buffer.raw()).collect()).collect();
        let arg_lists: Vec<_> = raw_args.iter().map(|list| list.as_ptr()).collect();
        let mut raw_outputs = vec![vec![std::ptr::null_mut(); self.num_outputs()]; devices.len()];
        let output_lists: Vec<_> = raw_outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let mut done = vec![std::ptr::null_mut(); devices.len()];
        let mut options_block = inner.options(options);
        let mut call = inner.home.client.api().block::<PJRT_LoadedExecutable_Execute_Args>();
        call.executable = inner.raw.loaded.as_ptr();
        call.options = options_block.as_mut_ptr();
        call.argument_lists = arg_lists.as_ptr();
        call.num_devices = devices.len();
        call.num_args = args[0].len();
        call.output_lists = output_lists.as_ptr();
        if options.want_completion_event {
            call.device_complete_events = done.as_mut_ptr();
        }
        // SAFETY: holds because executable and arguments are alive and of one client, the lists
        // have their declared lengths, and all of them outlive the call.
        unsafe { inner.home.client.api().call(&mut call) }?;
        let each = raw_outputs.iter().zip(&done).zip(devices);
        // All objects are taken over before the first error is returned, so that none is lost.
        // SAFETY: holds because the call succeeded and gave us these objects.
        let all: Vec<_> =
            each.map(|((raw, done), slot)| unsafe { inner.collect(raw, *done, *slot) }).collect();
        all.into_iter().collect()
    }
}

impl Inner {
    /// Checks what the plugin may not check.
    #[inline]
    fn check(&self, args: &[&Buffer], non_donatable: &[i64]) -> Result<(), Error> {
        let fits = match &self.parameters {
            Some(parameters) => {
                parameters.len() == args.len()
                    && parameters.iter().zip(args).all(|(parameter, arg)| parameter == arg.ty())
            }
            None => true,
        };
        let ours = args.iter().all(|arg| *arg.client() == self.home.client);
        let vetoes = non_donatable.iter().all(|index| usize::try_from(*index).is_ok_and(|i| i < args.len()));
        if fits && ours && vetoes { Ok(()) } else { Err(self.refuse(args, non_donatable)) }
    }

    /// The error for the problem that [`Inner::check`] found.
    #[cold]
    fn refuse(&self, args: &[&Buffer], non_donatable: &[i64]) -> Error {
        let parameters = self.parameters.as_deref().unwrap_or_default();
        let name = &self.name;
        if let Some(index) = args.iter().position(|arg| *arg.client() != self.home.client) {
            let text = format!("argument {index} of {name} belongs to another client than the executable");
            return Error::invalid(FUNCTION, text);
        }
        if self.parameters.is_some() && parameters.len() != args.len() {
            let text = format!("{name} takes {} arguments, but {} were given", parameters.len(), args.len());
            return Error::invalid(FUNCTION, text);
        }
        let mismatch = parameters.iter().zip(args).position(|(parameter, arg)| parameter != arg.ty());
        if let Some(index) = mismatch {
            let (parameter, arg) = (&parameters[index], args[index].ty());
            let text = format!("argument {index} of {name} is {arg}, but the parameter is {parameter}");
            return Error::invalid(FUNCTION, text);
        }
        let text = format!(
            "{name} has {} arguments, but the non-donatable ones include an index out of range: {non_donatable:?}",
            args.len()
        );
        Error::invalid(FUNCTION, text)
    }

    /// The slot of the requested device.
    fn check_device(&self, device: &Device) -> Result<u32, Error> {
        if *device.client() != self.home.client {
            return Err(Error::invalid(FUNCTION, "the device belongs to another client than the executable"));
        }
        if !device.is_addressable() {
            return Err(Error::invalid(FUNCTION, format!("{device:?} belongs to another process")));
        }
        Ok(device.slot())
    }

    /// The slot of the device that the executable was compiled for.
    #[inline]
    fn only_device(&self) -> Result<u32, Error> {
        match self.devices.as_slice() {
            [slot] => Ok(*slot),
            [] => Err(self.no_device("is bound to no device; name one")),
            _ => Err(self.no_device("is bound to several devices; run it on all, or name one")),
        }
    }

    #[cold]
    fn no_device(&self, why: &str) -> Error {
        Error::invalid(FUNCTION, format!("{} {why}", self.name))
    }

    #[inline]
    fn options(&self, options: &ExecuteOptions<'_>) -> Block<PJRT_ExecuteOptions> {
        let mut block = self.home.client.api().block::<PJRT_ExecuteOptions>();
        block.launch_id = options.launch_id;
        if !options.non_donatable.is_empty() {
            block.non_donatable_input_indices = options.non_donatable.as_ptr();
            block.num_non_donatable_input_indices = options.non_donatable.len();
        }
        if let Some(location) = options.call_location {
            block.tail.call_location = location.as_ptr();
        }
        block
    }

    /// Takes over what a successful call returned for one device.
    ///
    /// # Safety
    /// Each pointer is null or an object of this client that nobody else owns.
    #[inline]
    unsafe fn collect(
        &self,
        raw_outputs: &[*mut PJRT_Buffer],
        done: *mut PJRT_Event,
        device: u32,
    ) -> Result<Execution, Error> {
        // SAFETY: holds because the caller guarantees the requirements on the pointers.
        let done = unsafe { Event::from_raw(done, &self.home.client) };
        let mut outputs = SmallVec::new();
        let mut lost = None;
        for (index, raw) in raw_outputs.iter().enumerate() {
            // SAFETY: holds because the caller guarantees the requirements on the pointers, and
            // outputs come in the order of their types.
            match unsafe { Buffer::from_raw(*raw, &self.home, index as u32, device, FUNCTION) } {
                Ok(buffer) => outputs.push(buffer),
                Err(error) => lost = Some(error),
            }
        }
        match lost {
            None => Ok(Execution { outputs, done }),
            Some(error) => Err(error),
        }
    }
}
