//! Buffers and their values, which arrive later.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use fuseline_fusion::{Literal, TensorType};
use parking_lot::Mutex;

use crate::client::Client;
use crate::event::{HostMemory, Promise, Status};
use crate::plan::{Failure, INTERNAL};
use crate::points::{COPY_IN, COPY_OUT};
use crate::registry::{Handle, Kind, insert};
use crate::world::{Fault, enter};

/// Data that is there once its promise is kept with success.
pub(crate) struct Value {
    pub(crate) promise: Arc<Promise>,
    data: OnceLock<Arc<Literal>>,
}

impl Value {
    pub(crate) fn promised() -> Arc<Value> {
        Arc::new(Value { promise: Promise::new(), data: OnceLock::new() })
    }

    pub(crate) fn keep(&self, outcome: Result<Arc<Literal>, Failure>) {
        let status = outcome.map(|data| self.data.set(data).expect("bug: a value was set twice"));
        self.promise.keep(status);
    }

    /// Waits for the data.
    pub(crate) fn wait(&self) -> Result<Arc<Literal>, Failure> {
        self.promise.wait()?;
        Ok(Arc::clone(self.data.get().expect("bug: a kept promise without data")))
    }
}

struct State {
    /// `None` after the buffer was deleted or donated.
    value: Option<Arc<Value>>,
    /// The memory that others use, which must stay for them.
    lent: Option<Arc<Literal>>,
    references: usize,
}

/// A buffer.
pub(crate) struct Buffer {
    pub(crate) ty: TensorType,
    /// Sizes, as C arrays have them.
    pub(crate) dims: Vec<i64>,
    /// The index of its device.
    pub(crate) device: usize,
    pub(crate) client: Handle,
    /// Host memory that is used in place and must not be written.
    is_borrowed: bool,
    state: Mutex<State>,
    /// Kept when the buffer is destroyed.
    pub(crate) gone: Option<Arc<Promise>>,
}

/// Where a buffer is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) device: usize,
    pub(crate) client: Handle,
}

/// What the caller allows a plugin to do with host memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lease {
    /// Nothing after the call.
    Call,
    /// Read it until an event says that the transfer is done.
    Transfer,
    /// Use it until the buffer is destroyed.
    InPlace { writable: bool },
}

impl Buffer {
    fn made(
        ty: TensorType,
        value: Arc<Value>,
        place: Place,
        is_borrowed: bool,
        gone: Option<Arc<Promise>>,
    ) -> Handle {
        let Place { device, client } = place;
        let dims = ty.dims().iter().map(|dim| *dim as i64).collect();
        let state = Mutex::new(State { value: Some(value), lent: None, references: 0 });
        insert(Kind::Buffer, Arc::new(Buffer { ty, dims, device, client, is_borrowed, state, gone }), client)
    }

    /// A buffer with a value, owned by the caller.
    pub(crate) fn of(ty: TensorType, value: Arc<Value>, place: Place) -> Handle {
        Buffer::made(ty, value, place, false, None)
    }

    /// A view of memory that belongs to somebody else. `gone` is kept when it is no longer used.
    pub(crate) fn view(data: Literal, gone: Arc<Promise>, place: Place) -> Handle {
        let (ty, value) = (data.ty().clone(), Value::promised());
        value.keep(Ok(Arc::new(data)));
        Buffer::made(ty, value, place, false, Some(gone))
    }

    /// Starts a transfer from the host. The promise says when the memory is no longer used.
    ///
    /// # Safety
    /// The memory is readable as long as the lease says.
    pub(crate) unsafe fn from_host(
        client: &Client,
        ty: TensorType,
        memory: HostMemory,
        lease: Lease,
        event_error: Option<Failure>,
        place: Place,
    ) -> Result<(Handle, Arc<Promise>), Failure> {
        let wanted =
            usize::try_from(ty.bytes().0).map_err(|_| Failure::invalid("a buffer larger than memory"))?;
        if memory.len < wanted {
            return Err(Failure::invalid(format!("{} bytes for {ty}", memory.len)));
        }
        let (value, done) = (Value::promised(), Promise::new());
        let gone = matches!(lease, Lease::InPlace { .. }).then(|| done.clone());
        let is_borrowed = lease == Lease::InPlace { writable: false };
        let buffer = Buffer::made(ty.clone(), value.clone(), place, is_borrowed, gone);
        let read = {
            let ty = ty.clone();
            move |memory: HostMemory| {
                let bytes = unsafe { std::slice::from_raw_parts(memory.start.cast::<u8>(), wanted) };
                Literal::from_bytes(ty, bytes.to_vec()).map_err(|error| Failure::invalid(error.to_string()))
            }
        };
        // Memory that may be read only during the call is copied now; the data still arrives later.
        let early = match lease {
            Lease::Call => Ok(read(HostMemory { ..memory })),
            Lease::Transfer | Lease::InPlace { .. } => Err((memory, read)),
        };
        let is_done = lease == Lease::Transfer;
        if lease == Lease::Call {
            done.keep(Ok(()));
        }
        let done_later = done.clone();
        client.copies.push(move || {
            let planned = planned(COPY_IN, wanted as u64, event_error);
            let read = match early {
                Ok(read) => read,
                Err((memory, read)) => read(memory),
            };
            if is_done {
                done_later.keep(Ok(()));
            }
            value.keep(planned.and(read).map(Arc::new));
        });
        Ok((buffer, done))
    }

    /// The value, if it has not been deleted or donated.
    pub(crate) fn value(&self) -> Result<Arc<Value>, Failure> {
        self.state.lock().value.clone().ok_or_else(|| Failure::invalid("the buffer was deleted or donated"))
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.state.lock().value.is_none()
    }

    /// Puts a result in the place of the data, as a plugin with a defect does.
    pub(crate) fn overwrite(&self, value: Arc<Value>) {
        self.state.lock().value = Some(value);
    }

    pub(crate) fn delete(&self) {
        drop(self.state.lock().value.take());
    }

    /// Whether an execution may take its memory.
    pub(crate) fn may_be_donated(&self) -> bool {
        !self.is_borrowed && self.state.lock().references == 0
    }

    /// Marks the memory as used by others.
    pub(crate) fn borrow(&self) -> Result<(), Failure> {
        self.value()?;
        self.state.lock().references += 1;
        Ok(())
    }

    /// Ends a use of the memory by others.
    pub(crate) fn give_back(&self) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let left = state.references.checked_sub(1);
        state.references = left.ok_or_else(|| Failure::invalid("more references given back than taken"))?;
        if state.references == 0 {
            state.lent = None;
        }
        Ok(())
    }

    pub(crate) fn references(&self) -> usize {
        self.state.lock().references
    }

    /// The address of the data. Waits for it, because there is no memory before.
    pub(crate) fn address(&self) -> Result<*mut c_void, Failure> {
        let data = self.value()?.wait()?;
        let address = data.bytes().as_ptr().cast_mut().cast();
        self.state.lock().lent = Some(data);
        Ok(address)
    }

    /// Starts a transfer to the host.
    ///
    /// # Safety
    /// The memory is writable until the promise is kept.
    pub(crate) unsafe fn to_host(
        &self,
        client: &Client,
        memory: HostMemory,
        event_error: Option<Failure>,
    ) -> Result<Arc<Promise>, Failure> {
        let value = self.value()?;
        if (memory.len as u64) < self.ty.bytes().0 {
            return Err(Failure::invalid(format!("{} bytes of room for {}", memory.len, self.ty)));
        }
        let done = Promise::new();
        let told = done.clone();
        client.copies.push(move || {
            // Move the whole struct into the closure, not single fields.
            let memory = memory;
            let planned = planned(COPY_OUT, memory.len as u64, event_error);
            let copied: Status = value.wait().and_then(|data| {
                planned?;
                let bytes = data.bytes();
                // SAFETY: as the caller of `to_host` says; the length was compared.
                unsafe { memory.start.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            });
            told.keep(copied);
        });
        Ok(done)
    }
}

/// Does what is planned for work on a client's thread, or for the call that it belongs to.
pub(crate) fn planned(point: &'static str, size: u64, event_error: Option<Failure>) -> Status {
    match enter(point, size) {
        Fault::Fail(failure) => Err(failure),
        Fault::None => event_error.map_or(Ok(()), Err),
        Fault::Event(_) | Fault::Null | Fault::WrongStructSize => {
            Err(Failure::new(INTERNAL, format!("bug: a plan that means nothing at {point}")))
        }
    }
}
