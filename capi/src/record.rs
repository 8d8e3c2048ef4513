//! Recording ops, and the bodies of ops.

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

/// Whether an op must run in program order, even if nobody uses its results.
pub type fuseline_effect = u32;

/// As the op table says.
pub const FUSELINE_PURE: fuseline_effect = 0;
/// It must run in program order.
pub const FUSELINE_ORDERED: fuseline_effect = 1;

/// A finished body of an op, which uses no values from outside.
pub struct fuseline_body(pub(crate) Arc<Body>);

/// An op to record. Zero the whole structure first: zero means absent.
#[repr(C)]
pub struct fuseline_call {
    /// Size of this structure, as the caller knows it.
    pub struct_size: usize,
    /// The op.
    pub op: fuseline_op,
    /// Its effect.
    pub effect: fuseline_effect,
    /// Its attributes, made for this op; null for none.
    pub attrs: *const fuseline_attrs,
    /// Its operands.
    pub operands: *const fuseline_value,
    /// How many there are.
    pub num_operands: usize,
    /// Its bodies, if they come from fuseline_body_end.
    pub bodies: *const *const fuseline_body,
    /// How many there are.
    pub num_bodies: usize,
    /// Its call site, or null if unknown.
    pub site: *const fuseline_site,
}

/// A body of an op, begun by fuseline_body_begin, and what it returns.
#[repr(C)]
pub struct fuseline_open_body {
    /// The body.
    pub body: fuseline_stream,
    /// What it returns.
    pub returns: *const fuseline_value,
    /// How many there are.
    pub num_returns: usize,
}

/// Memory for the results of a call. Results that do not fit are released.
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
        // SAFETY: the caller guarantees room for `capacity` elements, or null.
        let ids = unsafe { room(ids, capacity, "results") }?;
        // SAFETY: as above.
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

    /// Writes all results.
    pub(crate) fn fill(mut self, session: &Session, made: &[RecordedResult]) -> Result<()> {
        made.iter().for_each(|made| self.put(made.id, &made.ty));
        self.finish(session)
    }
}

/// A decoded call, without the bodies, which are reference-counted pointers of the caller.
struct Read<'a> {
    op: OpCode,
    attrs: &'a Attrs,
    operands: &'a [ValueHandle],
    effect: Effect,
    site: &'a Site,
}

/// # Safety
/// The call is as the header says, and all of it lives for `'a`.
unsafe fn read<'a>(call: &fuseline_call) -> Result<Read<'a>> {
    static NONE: Attrs = Attrs::NONE;
    if call.struct_size < size_of::<fuseline_call>() {
        let (given, wanted) = (call.struct_size, size_of::<fuseline_call>());
        return Err(Fault::invalid(format!("call.struct_size is {given}, but must be at least {wanted}")));
    }
    let op = op(call.op)?;
    // SAFETY: the caller guarantees that it is null or points to live attributes.
    let attrs = unsafe { call.attrs.as_ref() };
    if let Some(attrs) = attrs
        && attrs.op != op
    {
        return Err(Fault::bad_op(format!("{op} got attributes that were made for {}", attrs.op)));
    }
    // SAFETY: the caller passes null or that many elements (see the header).
    let operands = handles(unsafe { list(call.operands, call.num_operands, "call.operands") }?);
    let effect = match call.effect {
        FUSELINE_PURE => Effect::Pure,
        FUSELINE_ORDERED => Effect::Ordered,
        effect => {
            return Err(Fault::invalid(format!(
                "{effect} is not an effect (FUSELINE_PURE, FUSELINE_ORDERED)"
            )));
        }
    };
    // SAFETY: null or a site, and sites are never freed.
    let site = site_ref(unsafe { call.site.as_ref() });
    Ok(Read { op, attrs: attrs.map_or(&NONE, |attrs| &attrs.attrs), operands, effect, site })
}

/// The bodies of a call.
///
/// # Safety
/// As [`read`].
unsafe fn bodies_of(call: &fuseline_call) -> Result<Vec<Arc<Body>>> {
    if call.num_bodies == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller passes null or that many elements (see the header).
    let bodies = unsafe { list(call.bodies, call.num_bodies, "call.bodies") }?;
    let body = |&body: &*const fuseline_body| {
        // SAFETY: the caller guarantees that it is null or points to a live body.
        let body = unsafe { body.as_ref() };
        given(body, "a body of the call").map(|body| body.0.clone())
    };
    bodies.iter().map(body).collect()
}

/// Records an op and returns its results at once: as many ids as fit, each with one reference, and
/// their types if `types` is not null. `*count`, if `count` is not null, is the number of results.
/// Results that do not fit are released. In Debug mode, waits for the op and fails if it fails.
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
        // SAFETY: the caller passes a call as the header describes it.
        let Read { op, attrs, operands, effect, site } = unsafe { read(call) }?;
        // SAFETY: the caller passes a call as the header describes it.
        let bodies = unsafe { bodies_of(call) }?;
        // SAFETY: the caller passes null or room for `capacity` elements (see the header).
        let mut places = unsafe { Places::of(results, types, capacity, count) }?;
        let call = CallRef { op, attrs, bodies: &bodies, operands, effect, site };
        session.record_each(StreamHandle::from_raw(stream), &call, |id, ty| places.put(id, ty))?;
        places.finish(session)
    })
}

/// Begins a body of an op. Ops recorded under the returned id belong to it. Placeholders made under
/// the id are its parameters, in order.
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

/// Records an op with bodies from fuseline_body_begin, in the op's order. The bodies end here and
/// may use values from outside. `call` must have no bodies. Results are as for fuseline_record.
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
        // SAFETY: the caller passes a call as the header describes it.
        let Read { op, attrs, operands, effect, site } = unsafe { read(call) }?;
        // SAFETY: the caller passes a call as the header describes it.
        let ended = unsafe { bodies_of(call) }?;
        // SAFETY: the caller passes null or room for `capacity` elements (see the header).
        let places = unsafe { Places::of(results, types, capacity, count) }?;
        // SAFETY: the caller passes null or that many elements (see the header).
        let open = unsafe { list(bodies, num_bodies, "bodies") }?;
        let returns = |open: &fuseline_open_body| {
            // SAFETY: the caller passes null or that many elements (see the header).
            let returns = unsafe { list(open.returns, open.num_returns, "the list of returns of a body") }?;
            Ok((StreamHandle::from_raw(open.body), handles(returns)))
        };
        let open: Vec<(StreamHandle, &[ValueHandle])> = open.iter().map(returns).collect::<Result<_>>()?;
        let (attrs, site) = (attrs.clone(), site.clone());
        let call = Call { op, attrs, bodies: &ended, operands, effect, site };
        let made = session.record_with(StreamHandle::from_raw(stream), call, &open)?;
        places.fill(session, &made)
    })
}

/// Ends a body that uses no value from outside, so that any number of calls can use it. Its id
/// becomes invalid; the ids of its values still have to be released.
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
        // SAFETY: the caller passes null or that many elements (see the header).
        let returns = unsafe { list(returns, num_returns, "returns") }?;
        put(ended, "ended", || {
            let body = session.end_body(StreamHandle::from_raw(body), handles(returns))?;
            Ok(Box::into_raw(Box::new(fuseline_body(body))))
        })
    })
}

/// Frees a body; null is a no-op. Calls that were recorded with it keep theirs.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_body_free(body: Option<Box<fuseline_body>>) {
    guarded((), || drop(body));
}
