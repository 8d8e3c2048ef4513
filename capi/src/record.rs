//! Recording ops, and the bodies of those that have some.

use std::mem::MaybeUninit;
use std::sync::Arc;

use engine::embed::{Call, CallRef, RecordedResult, Session, StreamHandle, ValueHandle};
use engine::fusion::op::Effect;
use engine::{Attrs, Body, OpCode, Site, TensorType};

use crate::attrs::fuseline_attrs;
use crate::error::{Fault, Result, fuseline_error, guard, guarded};
use crate::ops::{fuseline_op, op};
use crate::raw::{given, list, put, room};
use crate::session::{fuseline_session, fuseline_stream, fuseline_value, handles, session};
use crate::site::{fuseline_site, site, site_ref};
use crate::types::fuseline_type;

/// Whether an op must run even if nobody uses its results, in the order of the program.
pub type fuseline_effect = u32;

/// What the op table says.
pub const FUSELINE_PURE: fuseline_effect = 0;
/// It must.
pub const FUSELINE_ORDERED: fuseline_effect = 1;

/// A function of an op, ended, which uses nothing from outside.
pub struct fuseline_body(pub(crate) Arc<Body>);

/// An op to be recorded. Set all of it to zero first: what is zero is left out.
#[repr(C)]
pub struct fuseline_call {
    /// Size of this structure, as the caller knows it.
    pub struct_size: usize,
    /// The op.
    pub op: fuseline_op,
    /// What it does besides.
    pub effect: fuseline_effect,
    /// Its attributes, made for this op; null for none.
    pub attrs: *const fuseline_attrs,
    /// Its operands.
    pub operands: *const fuseline_value,
    /// How many there are.
    pub num_operands: usize,
    /// Its functions, if they were ended by fuseline_body_end.
    pub bodies: *const *const fuseline_body,
    /// How many there are.
    pub num_bodies: usize,
    /// Where the program calls it; null where that is not known.
    pub site: *const fuseline_site,
}

/// A function of an op, begun by fuseline_body_begin, and what it returns.
#[repr(C)]
pub struct fuseline_open_body {
    /// The body.
    pub body: fuseline_stream,
    /// What it returns.
    pub returns: *const fuseline_value,
    /// How many there are.
    pub num_returns: usize,
}

/// Where results of a call go: as many as there is room for. The others are released.
pub(crate) struct Places<'a> {
    ids: &'a mut [MaybeUninit<fuseline_value>],
    types: &'a mut [MaybeUninit<fuseline_type>],
    count: Option<&'a mut MaybeUninit<usize>>,
    made: usize,
    surplus: Vec<ValueHandle>,
}

impl<'a> Places<'a> {
    /// # Safety
    /// Each pointer is null or the start of room for as many as there is capacity for, for `'a`.
    pub(crate) unsafe fn of(
        ids: *mut fuseline_value,
        types: *mut fuseline_type,
        capacity: usize,
        count: Option<&'a mut MaybeUninit<usize>>,
    ) -> Result<Places<'a>> {
        // SAFETY: holds because the caller vouches for it.
        let ids = unsafe { room(ids, capacity, "results") }?;
        // SAFETY: holds for the same reason.
        let types = unsafe { room(types, if types.is_null() { 0 } else { capacity }, "types") }?;
        Ok(Places { ids, types, count, made: 0, surplus: Vec::new() })
    }

    #[inline]
    pub(crate) fn put(&mut self, id: ValueHandle, ty: &TensorType) {
        match self.ids.get_mut(self.made) {
            Some(place) => _ = place.write(id.to_raw()),
            None => self.surplus.push(id),
        }
        if let Some(place) = self.types.get_mut(self.made) {
            place.write(fuseline_type::of(ty));
        }
        self.made += 1;
    }

    pub(crate) fn finish(self, session: &Session) -> Result<()> {
        if let Some(count) = self.count {
            count.write(self.made);
        }
        self.surplus.into_iter().try_for_each(|id| Ok(session.release(id)?))
    }

    /// All of them.
    pub(crate) fn fill(mut self, session: &Session, made: &[RecordedResult]) -> Result<()> {
        made.iter().for_each(|made| self.put(made.id, &made.ty));
        self.finish(session)
    }
}

/// A call, looked at, but for the bodies: they are counted pointers to what the caller has.
struct Read<'a> {
    op: OpCode,
    attrs: &'a Attrs,
    operands: &'a [ValueHandle],
    effect: Effect,
    site: &'a Site,
}

/// # Safety
/// The call is as the header says, and all of it stays for `'a`.
unsafe fn read<'a>(call: &fuseline_call) -> Result<Read<'a>> {
    static NONE: Attrs = Attrs::NONE;
    if call.struct_size < size_of::<fuseline_call>() {
        let (given, wanted) = (call.struct_size, size_of::<fuseline_call>());
        return Err(Fault::invalid(format!("call.struct_size is {given}, and {wanted} is the least")));
    }
    let op = op(call.op)?;
    // SAFETY: holds because the caller vouches for it: null or attributes that live.
    let attrs = unsafe { call.attrs.as_ref() };
    if let Some(attrs) = attrs
        && attrs.op != op
    {
        return Err(Fault::bad_op(format!("{op} was given attributes that were made for {}", attrs.op)));
    }
    // SAFETY: holds because the caller vouches for it.
    let operands = handles(unsafe { list(call.operands, call.num_operands, "call.operands") }?);
    let effect = match call.effect {
        FUSELINE_PURE => Effect::Pure,
        FUSELINE_ORDERED => Effect::Ordered,
        effect => {
            return Err(Fault::invalid(format!("{effect} is no effect (FUSELINE_PURE, FUSELINE_ORDERED)")));
        }
    };
    // SAFETY: holds because sites are never freed.
    let site = site_ref(unsafe { call.site.as_ref() });
    Ok(Read { op, attrs: attrs.map_or(&NONE, |attrs| &attrs.attrs), operands, effect, site })
}

/// The bodies that come with a call.
///
/// # Safety
/// As [`read`].
unsafe fn bodies_of(call: &fuseline_call) -> Result<Vec<Arc<Body>>> {
    if call.num_bodies == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: holds because the caller vouches for it.
    let bodies = unsafe { list(call.bodies, call.num_bodies, "call.bodies") }?;
    let body = |&body: &*const fuseline_body| {
        // SAFETY: holds because the caller vouches for it: null or a body that lives.
        let body = unsafe { body.as_ref() };
        given(body, "a body of the call").map(|body| body.0.clone())
    };
    bodies.iter().map(body).collect()
}

/// Records an op and returns its results at once: as many ids as there is room for, each with one
/// reference, and their types if `types` is not null. `*count`, which may be null, is how many
/// results there are; those without room are released. In Debug mode, waits for the op and fails if
/// it does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_record(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    call: Option<&fuseline_call>,
    results: *mut fuseline_value,
    types: *mut fuseline_type,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> *mut fuseline_error {
    guard("fuseline_record", || {
        let session = self::session(session)?;
        let call = given(call, "call")?;
        // SAFETY: holds because the caller vouches for it.
        let Read { op, attrs, operands, effect, site } = unsafe { read(call) }?;
        // SAFETY: holds because the caller vouches for it.
        let bodies = unsafe { bodies_of(call) }?;
        // SAFETY: holds because the caller vouches for it.
        let mut places = unsafe { Places::of(results, types, capacity, count) }?;
        let call = CallRef { op, attrs, bodies: &bodies, operands, effect, site };
        session.record_each(StreamHandle::from_raw(stream), &call, |id, ty| places.put(id, ty))?;
        places.finish(session)
    })
}

/// Begins a function of an op: ops recorded under the id returned are its own, and its parameters
/// are the placeholders made under it, in order.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_body_begin(
    session: Option<&fuseline_session>,
    op: fuseline_op,
    site: Option<&fuseline_site>,
    body: Option<&mut MaybeUninit<fuseline_stream>>,
) -> *mut fuseline_error {
    guard("fuseline_body_begin", || {
        let session = self::session(session)?;
        let op = self::op(op)?;
        put(body, "body", || Ok(session.begin_body(op, self::site(site))?.to_raw()))
    })
}

/// Records an op with functions that were begun by fuseline_body_begin, in the op's order; they end
/// here, and may use values from outside. `call` comes without bodies. Results as of
/// fuseline_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_record_with(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    call: Option<&fuseline_call>,
    bodies: *const fuseline_open_body,
    num_bodies: usize,
    results: *mut fuseline_value,
    types: *mut fuseline_type,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> *mut fuseline_error {
    guard("fuseline_record_with", || {
        let session = self::session(session)?;
        let call = given(call, "call")?;
        // SAFETY: holds because the caller vouches for it.
        let Read { op, attrs, operands, effect, site } = unsafe { read(call) }?;
        // SAFETY: holds because the caller vouches for it.
        let ended = unsafe { bodies_of(call) }?;
        // SAFETY: holds because the caller vouches for it.
        let places = unsafe { Places::of(results, types, capacity, count) }?;
        // SAFETY: holds because the caller vouches for it.
        let open = unsafe { list(bodies, num_bodies, "bodies") }?;
        let returns = |open: &fuseline_open_body| {
            // SAFETY: holds because the caller vouches for it.
            let returns = unsafe { list(open.returns, open.num_returns, "what a body returns") }?;
            Ok((StreamHandle::from_raw(open.body), handles(returns)))
        };
        let open: Vec<(StreamHandle, &[ValueHandle])> = open.iter().map(returns).collect::<Result<_>>()?;
        let (attrs, site) = (attrs.clone(), site.clone());
        let call = Call { op, attrs, bodies: &ended, operands, effect, site };
        let made = session.record_with(StreamHandle::from_raw(stream), call, &open)?;
        places.fill(session, &made)
    })
}

/// Ends a function that uses no value from outside, to be given to any number of calls. Its id
/// stands for nothing any more; those of its values are still to be released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_body_end(
    session: Option<&fuseline_session>,
    body: fuseline_stream,
    returns: *const fuseline_value,
    num_returns: usize,
    ended: Option<&mut MaybeUninit<*mut fuseline_body>>,
) -> *mut fuseline_error {
    guard("fuseline_body_end", || {
        let session = self::session(session)?;
        // SAFETY: holds because the caller vouches for it.
        let returns = unsafe { list(returns, num_returns, "returns") }?;
        put(ended, "ended", || {
            let body = session.end_body(StreamHandle::from_raw(body), handles(returns))?;
            Ok(Box::into_raw(Box::new(fuseline_body(body))))
        })
    })
}

/// Frees a function; null is nothing. Calls that were recorded with it keep theirs.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_body_free(body: Option<Box<fuseline_body>>) {
    guarded((), || drop(body));
}
