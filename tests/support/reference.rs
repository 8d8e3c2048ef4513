//! Cases of reference data, as written by the scripts under `tests/data`.

use fuseline::Literal;
use serde_json::Value;

/// A call, with the results of another library.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) settings: Value,
    pub(crate) inputs: Vec<Literal>,
    pub(crate) outputs: Vec<Literal>,
}

fn literal(value: &Value) -> Literal {
    let list = |key: &str| value[key].as_array().unwrap().clone();
    let dims: Vec<u64> = list("dims").iter().map(|dim| dim.as_u64().unwrap()).collect();
    let data = list("data");
    match value["type"].as_str().unwrap() {
        "f64" => {
            let number =
                |value: &Value| value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap());
            Literal::from_slice(&dims, &data.iter().map(number).collect::<Vec<f64>>()).unwrap()
        }
        "i64" => {
            let data: Vec<i64> = data.iter().map(|value| value.as_i64().unwrap()).collect();
            Literal::from_slice(&dims, &data).unwrap()
        }
        "bool" => {
            let data: Vec<bool> = data.iter().map(|value| value.as_bool().unwrap()).collect();
            Literal::from_slice(&dims, &data).unwrap()
        }
        other => panic!("{other} in the data"),
    }
}

/// The cases of a file.
pub(crate) fn cases(text: &str) -> Vec<Case> {
    let data: Value = serde_json::from_str(text).unwrap();
    let list = |case: &Value, key: &str| case[key].as_array().unwrap().iter().map(literal).collect();
    let cases = data["cases"].as_array().unwrap().iter().map(|case| Case {
        name: case["name"].as_str().unwrap().to_owned(),
        settings: case["settings"].clone(),
        inputs: list(case, "inputs"),
        outputs: list(case, "outputs"),
    });
    cases.collect()
}

impl Case {
    pub(crate) fn number(&self, key: &str) -> f64 {
        self.settings[key].as_f64().unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }

    pub(crate) fn int(&self, key: &str) -> i64 {
        self.settings[key].as_i64().unwrap_or_else(|| panic!("{} has no {key}", self.name))
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.settings[key].as_bool()
    }

    pub(crate) fn ints(&self, key: &str) -> Vec<i64> {
        let list = self.settings[key].as_array().unwrap_or_else(|| panic!("{} has no {key}", self.name));
        list.iter().map(|value| value.as_i64().unwrap()).collect()
    }

    pub(crate) fn sizes(&self, key: &str) -> Vec<usize> {
        self.ints(key).into_iter().map(|size| size as usize).collect()
    }

    /// The first difference of a result, if any. Floats may differ by `tolerance` times the larger
    /// of their size and 1.
    pub(crate) fn difference(&self, actual: &Literal, expected: &Literal, tolerance: f64) -> Option<String> {
        let what = || format!("{} with {} of {:?}", self.name, self.settings, self.inputs);
        if actual.ty() != expected.ty() {
            return Some(format!("{} instead of {}: {}", actual.ty(), expected.ty(), what()));
        }
        if !expected.dtype().is_float() {
            return (actual != expected).then(|| format!("{actual:?} instead of {expected:?}: {}", what()));
        }
        let (actual, expected) = (actual.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
        actual.iter().zip(&expected).enumerate().find_map(|(i, (a, e))| {
            let close = (a - e).abs() <= tolerance * e.abs().max(1.0);
            let same = a == e || close || (a.is_nan() && e.is_nan());
            (!same).then(|| format!("element {i} is {a:?} instead of {e:?}: {}", what()))
        })
    }
}
