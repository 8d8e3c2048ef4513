//! `+ - * / %`, unary minus and `!`, on tensors and numbers.
//!
//! An operator records an op, and recording can fail, so it returns a [`Result`]. Each operator of
//! two tensors also takes such a result on one side, so that an expression needs one `?` at its
//! end. A result on both sides, or beside a number, is impossible: `Result` belongs to the standard
//! library, and the orphan rule requires a type of this crate among the operands.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};
use std::panic::Location;

use fuseline_fusion::OpCode;
use fuseline_runtime::Result;
use num_complex::Complex;

use super::{Tensor, here};

macro_rules! binary {
    ($($trait:ident::$method:ident => $code:ident),* $(,)?) => {$(
        impl $trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                self.binary(rhs, Location::caller(), OpCode::$code)
            }
        }
        impl $trait<Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                self.binary(&rhs, Location::caller(), OpCode::$code)
            }
        }
        impl $trait<&Tensor> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                self.binary(rhs, Location::caller(), OpCode::$code)
            }
        }
        impl $trait<Tensor> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                self.binary(&rhs, Location::caller(), OpCode::$code)
            }
        }
        /// A failed operand is the result; the error keeps the call site where it arose.
        impl $trait<&Tensor> for Result<Tensor> {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                self?.binary(rhs, Location::caller(), OpCode::$code)
            }
        }
        /// A failed operand is the result; the error keeps the call site where it arose.
        impl $trait<Tensor> for Result<Tensor> {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                self?.binary(&rhs, Location::caller(), OpCode::$code)
            }
        }
        /// A failed operand is the result; the error keeps the call site where it arose.
        impl $trait<Result<Tensor>> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Result<Tensor>) -> Result<Tensor> {
                self.binary(&rhs?, Location::caller(), OpCode::$code)
            }
        }
        /// A failed operand is the result; the error keeps the call site where it arose.
        impl $trait<Result<Tensor>> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Result<Tensor>) -> Result<Tensor> {
                self.binary(&rhs?, Location::caller(), OpCode::$code)
            }
        }
    )*};
}

binary! {
    Add::add => Add, Sub::sub => Subtract, Mul::mul => Multiply, Div::div => Divide, Rem::rem => Remainder,
    BitAnd::bitand => And, BitOr::bitor => Or, BitXor::bitxor => Xor,
}

/// With a number, which becomes a lifted scalar of the promoted type: another number compiles
/// nothing.
macro_rules! number {
    ($number:ty: $($trait:ident::$method:ident => $code:ident),* $(,)?) => {$(
        impl $trait<$number> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: $number) -> Result<Tensor> {
                self.binary_number(OpCode::$code, rhs.into(), false, here())
            }
        }
        impl $trait<$number> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: $number) -> Result<Tensor> {
                self.binary_number(OpCode::$code, rhs.into(), false, here())
            }
        }
        impl $trait<&Tensor> for $number {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                rhs.binary_number(OpCode::$code, self.into(), true, here())
            }
        }
        impl $trait<Tensor> for $number {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                rhs.binary_number(OpCode::$code, self.into(), true, here())
            }
        }
    )*};
}

number! {
    f64: Add::add => Add, Sub::sub => Subtract, Mul::mul => Multiply, Div::div => Divide, Rem::rem => Remainder,
}

number! {
    Complex<f64>:
    Add::add => Add, Sub::sub => Subtract, Mul::mul => Multiply, Div::div => Divide,
}

number! {
    i64: Add::add => Add, Sub::sub => Subtract, Mul::mul => Multiply, Div::div => Divide, Rem::rem => Remainder,
    BitAnd::bitand => And, BitOr::bitor => Or, BitXor::bitxor => Xor,
}

macro_rules! unary {
    ($($trait:ident::$method:ident => $code:ident),* $(,)?) => {$(
        impl $trait for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                self.unary(Location::caller(), OpCode::$code)
            }
        }
        impl $trait for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                self.unary(Location::caller(), OpCode::$code)
            }
        }
    )*};
}

unary! { Neg::neg => Negate, Not::not => Not }
