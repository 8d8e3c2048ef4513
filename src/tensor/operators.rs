//! `+ - * / %`, unary minus and `!`, on tensors and numbers.
//!
//! An operator records an op, and recording can fail, so it returns a [`Result`].

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

use fuseline_fusion::{Attrs, OpCode};

use super::{Tensor, here};
use crate::error::Result;

macro_rules! binary {
    ($($trait:ident::$method:ident => $code:ident),* $(,)?) => {$(
        impl $trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                self.binary(OpCode::$code, Attrs::none(), rhs, here())
            }
        }
        impl $trait<Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                self.binary(OpCode::$code, Attrs::none(), &rhs, here())
            }
        }
        impl $trait<&Tensor> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                self.binary(OpCode::$code, Attrs::none(), rhs, here())
            }
        }
        impl $trait<Tensor> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                self.binary(OpCode::$code, Attrs::none(), &rhs, here())
            }
        }
    )*};
}

binary! {
    Add::add => Add, Sub::sub => Subtract, Mul::mul => Multiply, Div::div => Divide, Rem::rem => Remainder,
    BitAnd::bitand => And, BitOr::bitor => Or, BitXor::bitxor => Xor,
}

/// With a number, which becomes a lifted scalar of the tensor's element type (truncated for integers): another number
/// compiles nothing.
macro_rules! number {
    ($($trait:ident::$method:ident => $code:ident),* $(,)?) => {$(
        impl $trait<f64> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: f64) -> Result<Tensor> {
                self.binary_number(OpCode::$code, rhs, false, here())
            }
        }
        impl $trait<f64> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: f64) -> Result<Tensor> {
                self.binary_number(OpCode::$code, rhs, false, here())
            }
        }
        impl $trait<&Tensor> for f64 {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: &Tensor) -> Result<Tensor> {
                rhs.binary_number(OpCode::$code, self, true, here())
            }
        }
        impl $trait<Tensor> for f64 {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, rhs: Tensor) -> Result<Tensor> {
                rhs.binary_number(OpCode::$code, self, true, here())
            }
        }
    )*};
}

number! {
    Add::add => Add, Sub::sub => Subtract, Mul::mul => Multiply, Div::div => Divide, Rem::rem => Remainder,
}

macro_rules! unary {
    ($($trait:ident::$method:ident => $code:ident),* $(,)?) => {$(
        impl $trait for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                self.record(OpCode::$code, Attrs::none(), &[self], here())
            }
        }
        impl $trait for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                self.record(OpCode::$code, Attrs::none(), &[&self], here())
            }
        }
    )*};
}

unary! { Neg::neg => Negate, Not::not => Not }
