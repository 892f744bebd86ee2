//! Operators of which the runtime itself makes several nodes.

use std::collections::HashMap;

use super::{Drawn, NewValue, Rules, ValueNumber, computation};
use crate::graph::{AttributeValue, ElementType, Graph, TensorId};

impl Rules<'_> {
    /// Operators that have no kernel on the CPU, or none for their type: sessions run these in their place (read from graphs that
    /// sessions saved), so a graph that has them computes the same bits.
    pub(super) fn function(&mut self) -> Option<()> {
        let (domain, op_type) = (self.node.domain.as_str(), self.node.op_type.as_str());
        let opset = self.opset();
        let in_half = self.is_of(ElementType::Float16);
        let narrow = in_half || self.is_of(ElementType::Double);
        let said = match (domain, op_type) {
            ("com.microsoft", "DivGrad") => return self.division_gradient(),
            ("", "Bernoulli") => return self.random_flags(),
            ("", "HardSwish") => {
                "f (x) => (y) { s = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (x, s) }".to_owned()
            }
            ("", "Mish") => "f (x) => (y) { s = Softplus (x) t = Tanh (s) y = Mul (x, t) }".to_owned(),
            ("", "CastLike") => {
                let to = self.graph.tensor(self.node.input(1)?).element? as i64;
                format!("f (x) => (y) {{ y = Cast <to = {to}> (x) }}")
            }
            ("", "GroupNormalization") => self.group_normalization(opset < 21)?,
            ("", "LayerNormalization") if in_half => self.layer_normalization(opset)?,
            ("com.microsoft", "LayerNormalizationGrad") if in_half && opset < 18 => {
                self.layer_normalization_gradient()
            }
            ("", "Softmax" | "LogSoftmax") if in_half && opset >= 13 => self.softmax(opset),
            ("com.microsoft", _) if narrow => self.in_narrow_type(in_half)?,
            _ => return None,
        };
        self.computed_by(&said)
    }

    /// Is that the type of what it computes with?
    fn is_of(&self, element: ElementType) -> bool {
        let first = self.node.input(0);
        first.is_some_and(|first| self.graph.tensor(first).element == Some(element))
    }

    /// The node's results are what a graph's are, which has its inputs.
    fn computed_by(&mut self, said: &str) -> Option<()> {
        let body = Graph::parse(said).ok()?;
        let mut known: HashMap<TensorId, ValueNumber> = HashMap::new();
        for (&inside, tensor) in body.inputs.iter().zip(&self.node.inputs) {
            known.insert(inside, self.value((*tensor)?));
        }
        for &id in body.order() {
            let step = body.node(id);
            let operands: Option<Vec<ValueNumber>> =
                step.reads().map(|read| known.get(&read).copied()).collect();
            let operands = operands?.into_iter().map(Some).collect();
            let attributes = step.attributes.iter();
            let attributes = attributes.map(|one| (one.name.as_str(), one.value.clone()));
            let attributes = attributes.collect();
            let written = step.output(0)?;
            let place = body.outputs.iter().position(|&output| output == written);
            let value = match place.and_then(|place| self.node.output(place)) {
                Some(output) => {
                    self.equate(&step.domain, &step.op_type, attributes, operands, output)?;
                    self.value(output)
                }
                None => {
                    let computed = computation(&step.domain, &step.op_type, attributes, operands);
                    self.define_value(computed, None, None)
                }
            };
            known.insert(written, value);
        }
        Some(())
    }

    /// Mean and variance are those of rows `[batch, groups, all the rest]`, by which scale and bias go, too, or else they are by
    /// channel, with all before them in float32.
    fn group_normalization(&self, by_group: bool) -> Option<String> {
        let of = self.graph.tensor(self.node.input(0)?).element? as i64;
        let epsilon = self.node.float("epsilon").unwrap_or(1e-5);
        let groups = self.node.int("num_groups")?;
        let (wide, between) = match by_group {
            true => ("", "z = Div (u, d)".to_owned()),
            false if self.node.int("stash_type").unwrap_or(1) == 1 => (
                "w = Cast <to = 1> (x)",
                format!(
                    "v = Div (u, d) t = Reshape (v, shape) r = Reshape (t, nc) z = Cast <to = {of}> (r)"
                ),
            ),
            false => return None,
        };
        let x = if by_group { "x" } else { "w" };
        Some(format!(
            "f (x, scale, bias) => (y) {{
                {wide}
                e = Constant <value_floats : floats = [{epsilon:?}]> () e1 = Cast <to = 1> (e)
                shape = Shape ({x})
                n = Shape <start = 0, end = 1> (x) c = Shape <start = 1, end = 2> (x) hw = Shape <start = 2> (x)
                g = Constant <value_ints = [{groups}]> () cg = Div (c, g) ngchw = Concat <axis = 0> (n, g, cg, hw)
                nc = Constant <value_ints = [0, 0, -1]> () xg = Reshape ({x}, ngchw) xr = Reshape (xg, nc)
                two = Constant <value_ints = [2]> ()
                m = ReduceMean (xr, two) xx = Mul (xr, xr) mxx = ReduceMean (xx, two) mm = Mul (m, m)
                var = Sub (mxx, mm) ve = Add (var, e1) d = Sqrt (ve) u = Sub (xr, m) {between}
                row = Constant <value_ints = [1, -1, 1]> ()
                s = Cast <to = {of}> (scale) b = Cast <to = {of}> (bias) sr = Reshape (s, row) br = Reshape (b, row)
                sz = Mul (sr, z) szb = Add (sz, br) y = Reshape (szb, shape)
            }}"
        ))
    }

    /// Mean and variance in float32, of rows from an axis on.
    fn layer_normalization(&self, opset: i64) -> Option<String> {
        if self.node.int("stash_type").unwrap_or(1) != 1 {
            return None;
        }
        let axis = self.node.int("axis").unwrap_or(-1);
        let epsilon = self.node.float("epsilon").unwrap_or(1e-5);
        let (e, name) = match opset >= 17 {
            true => ("e = Cast <to = 1> (given)", "e"),
            false => ("", "given"),
        };
        let ones = if axis < 0 {
            "Neg (at)"
        } else {
            "Sub (rank, at)"
        };
        let mean = |of: &str| match opset < 18 {
            true => format!("ReduceMean <axes = [1], keepdims = 1> ({of})"),
            false => format!("ReduceMean <keepdims = 1> ({of}, i)"),
        };
        let i = if opset < 18 {
            ""
        } else {
            "i = Constant <value_ints = [1]> ()"
        };
        let (bias, sum) = match self.node.input(2) {
            Some(_) => (", bias", "b = Flatten <axis = 0> (bias) r = Add (sz, b)"),
            None => ("", "r = Identity (sz)"),
        };
        let of = ElementType::Float16 as i64;
        Some(format!(
            "f (x, scale{bias}) => (y, mean, inverse) {{
                given = Constant <value_float : float = {epsilon:?}> () {e} {i}
                shape = Shape (x) rank = Size (shape)
                zero = Constant <value_ints = [0]> () at = Constant <value_ints = [{axis}]> ()
                kept = Slice (shape, zero, at) n1 = {ones} n = ConstantOfShape <value = int64[1] {{1}}> (n1)
                by_row = Concat <axis = 0> (kept, n)
                xr = Flatten <axis = {axis}> (x) w = Cast <to = 1> (xr)
                m = {} ww = Mul (w, w) mww = {} mm = Mul (m, m)
                v = Sub (mww, mm) ve = Add (v, {name}) d = Sqrt (ve) u = Sub (w, m) zw = Div (u, d)
                z = Cast <to = {of}> (zw) s = Flatten <axis = 0> (scale) sz = Mul (z, s) {sum}
                y = Reshape (r, shape)
                mean = Reshape (m, by_row) o = Reciprocal (d) inverse = Reshape (o, by_row)
            }}",
            mean("w"),
            mean("ww")
        ))
    }

    /// In float32, of rows.
    fn layer_normalization_gradient(&self) -> String {
        let axis = self.node.int("axis").unwrap_or(-1);
        let of = ElementType::Float16 as i64;
        let mean = |of: &str| format!("ReduceMean <axes = [1], keepdims = 1> ({of})");
        let rows = |of: &str| format!("Flatten <axis = {axis}> ({of})");
        let back = |of_row: &str| format!("Cast <to = {of}> ({of_row})");
        format!(
            "f (dy, x, scale, mean, inverse) => (dx, ds, db) {{
                xw = Cast <to = 1> (x) dw = Cast <to = 1> (dy) sw = Cast <to = 1> (scale)
                xr = {} dr = {} m = {} o = {} s = Flatten <axis = 0> (sw)
                shape = Shape (x) of_scale = Shape (scale) zero = Constant <value_ints = [0]> ()
                u = Sub (xr, m) z = Mul (u, o) ds1 = Mul (dr, z)
                db2 = ReduceSum <keepdims = 1> (dr, zero) ds2 = ReduceSum <keepdims = 1> (ds1, zero)
                db3 = Reshape (db2, of_scale) ds3 = Reshape (ds2, of_scale) db = {} ds = {}
                ds0 = Mul (dr, s) b = Mul (ds0, o) c = Mul (b, z) mb = {} mc = {}
                zc = Mul (z, mc) ub = Sub (b, mb) dx2 = Sub (ub, zc) dx3 = Reshape (dx2, shape) dx = {}
            }}",
            rows("xw"),
            rows("dw"),
            rows("mean"),
            rows("inverse"),
            back("db3"),
            back("ds3"),
            mean("b"),
            mean("c"),
            back("dx3"),
        )
    }

    fn softmax(&self, opset: i64) -> String {
        let axis = self.node.int("axis").unwrap_or(-1);
        let most = match opset < 18 {
            true => format!("ReduceMax <axes = [{axis}], keepdims = 1> (x)"),
            false => "ReduceMax <keepdims = 1> (x, at)".to_owned(),
        };
        let last = match self.node.op_type.as_str() {
            "Softmax" => "y = Div (e, s)",
            _ => "l = Log (s) y = Sub (u, l)",
        };
        format!(
            "f (x) => (y) {{
                at = Constant <value_ints = [{axis}]> () m = {most} u = Sub (x, m) e = Exp (u)
                s = ReduceSum <keepdims = 1> (e, at) {last}
            }}"
        )
    }

    /// With numbers of the type that they compute in.
    fn in_narrow_type(&self, in_half: bool) -> Option<String> {
        let number = |half: f64, double: f64| match in_half {
            true => format!("Constant <value = float16 {{{half:?}}}> ()"),
            false => format!("Constant <value = double {{{double:?}}}> ()"),
        };
        let one = number(1.0, 1.0);
        let half = number(0.5, 0.5);
        let root = number(0.70703125, 0.0);
        Some(match self.node.op_type.as_str() {
            "SigmoidGrad" => format!(
                "f (dy, y) => (dx) {{ one = {one} a = Sub (one, y) b = Mul (y, a) dx = Mul (dy, b) }}"
            ),
            "TanhGrad" => format!(
                "f (dy, y) => (dx) {{ one = {one} a = Mul (y, y) b = Sub (one, a) dx = Mul (dy, b) }}"
            ),
            "Gelu" if in_half => format!(
                "f (x) => (y) {{
                    one = {one} h = {half} r = {root}
                    a = Mul (r, x) b = Erf (a) c = Add (b, one) d = Mul (c, h) y = Mul (x, d)
                }}"
            ),
            "GeluGrad" if in_half => format!(
                "f (dy, x) => (dx) {{
                    one = {one} h = {half} r = {root} m = {} k = {}
                    a = Mul (x, r) b = Erf (a) c = Add (b, one) d = Mul (h, c)
                    e = Mul (m, x) g = Mul (e, x) i = Exp (g) j = Mul (x, k) l = Mul (j, i)
                    s = Add (d, l) dx = Mul (dy, s)
                }}",
                number(-0.5, 0.0),
                number(0.39892578125, 0.0),
            ),
            "FastGelu" if in_half => {
                let (bias, sum) = match self.node.input(1) {
                    Some(_) => (", bias", "Add (x, bias)"),
                    None => ("", "Identity (x)"),
                };
                format!(
                    "f (x{bias}) => (y) {{
                        one = {one} h = {half} k = {} c = {} u = {sum}
                        a = Mul (u, u) b = Mul (c, a) d = Add (k, b) e = Mul (u, d) t = Tanh (e)
                        g = Add (one, t) i = Mul (u, g) y = Mul (h, i)
                    }}",
                    number(0.7978515625, 0.0),
                    number(0.035675048828125, 0.0),
                )
            }
            "FastGeluGrad" => format!(
                "f (dy, x) => (dx) {{
                    one = {one} h = {half} k = {} c = {} b = {}
                    xx = Mul (x, x) xxx = Mul (x, xx) cx = Mul (c, xxx) s = Add (x, cx) a = Mul (k, s)
                    t = Tanh (a) tt = Mul (t, t) u = Sub (one, tt)
                    kx = Mul (k, x) bx = Mul (b, xxx) d = Add (kx, bx) e = Mul (u, d)
                    g = Add (t, e) i = Add (g, one) j = Mul (h, i) dx = Mul (dy, j)
                }}",
                number(0.7978515625, 0.7978845608028654),
                number(0.044708251953125, 0.044714998453855515),
                number(0.1070556640625, 0.10703222070796595),
            ),
            "DropoutGrad" if in_half => {
                let (ratio, cast) = match self.node.input(2) {
                    Some(_) => {
                        let of = ElementType::Float16 as i64;
                        (", ratio", format!("Cast <to = {of}> (ratio)"))
                    }
                    None => ("", half),
                };
                format!(
                    "f (dy, mask{ratio}) => (dx) {{
                        zero = {} one = {one} p = {cast}
                        q = Sub (one, p) d = Div (dy, q) dx = Where (mask, d, zero)
                    }}",
                    number(0.0, 0.0)
                )
            }
            _ => return None,
        })
    }

    /// Bernoulli(X) -> Y has no kernel: sessions draw numbers between 0 and 1 of X's type, compare them with X, and cast what is found.
    /// From the seed that it names the same numbers are drawn under any name and at any place; without one any will do.
    fn random_flags(&mut self) -> Option<()> {
        let (chance, flags) = (self.node.input(0)?, self.node.output(0)?);
        let element = self.graph.tensor(chance).element?;
        let to = self.node.int("dtype").unwrap_or(element as i64);
        let mut attributes = vec![
            ("dtype", AttributeValue::Int(element as i64)),
            ("high", AttributeValue::Float(1.0)),
            ("low", AttributeValue::Float(0.0)),
        ];
        let seed = self.node.float("seed");
        attributes.extend(seed.map(|seed| ("seed", AttributeValue::Float(seed))));
        let chance_value = self.value(chance);
        let inputs = vec![Some(chance_value)];
        let by = computation("", "RandomUniformLike", attributes, inputs);
        let shape = self.graph.tensor(chance).shape.clone();
        let value = self.values.fresh(Some(element), shape);
        self.values.drawn.insert(self.id, Drawn { by, value });
        let found = NewValue::typed(chance, ElementType::Bool);
        let inputs = vec![Some(value), Some(chance_value)];
        let greater = self.define("Greater", vec![], inputs, found);
        let to = vec![("to", AttributeValue::Int(to))];
        self.equate("", "Cast", to, vec![Some(greater)], flags)
    }

    /// DivGrad(dY, A, B) -> (dA, dB) has no kernel on the CPU: sessions run `dY / B`, summed along the axes along which
    /// A was broadcast, and `dY * (-A / (B * B))` for B in the same way (read from graphs that sessions saved). So a graph that has
    /// these nodes computes the same bits.
    fn division_gradient(&mut self) -> Option<()> {
        let [dy, a, b] = [0, 1, 2].map(|position| self.node.input(position));
        let (dy, a, b) = (dy?, a?, b?);
        let [of_dy, of_a, of_b] = [dy, a, b].map(|tensor| self.value(tensor));
        let [shape_a, shape_b] = [(a, of_a), (b, of_b)].map(|(tensor, value)| {
            let rank = self.graph.tensor(tensor).shape.as_ref().map(Vec::len);
            let sizes = rank.map(|rank| vec![rank as u64]);
            let shape = computation("", "Shape", vec![], vec![Some(value)]);
            self.define_value(shape, Some(ElementType::Int64), sizes)
        });
        let axes = computation(
            "com.microsoft",
            "BroadcastGradientArgs",
            vec![],
            vec![Some(shape_a), Some(shape_b)],
        );
        let known = self.values.repeatable.get(&axes);
        let axes = match known.map(|known| known.outputs.clone()) {
            Some(outputs) => outputs,
            None => {
                let new = || Some(self.values.fresh(Some(ElementType::Int64), None));
                let outputs: Vec<Option<ValueNumber>> =
                    std::iter::repeat_with(new).take(2).collect();
                self.insert_all(axes, outputs.clone());
                outputs
            }
        };
        if let Some(da) = self.node.output(0) {
            let inputs = vec![Some(of_dy), Some(of_b)];
            let whole = self.define("Div", vec![], inputs, NewValue::of(dy));
            self.summed_up(whole, *axes.first()?, shape_a, da);
        }
        if let Some(db) = self.node.output(1) {
            let negative = self.define("Neg", vec![], vec![Some(of_a)], NewValue::of(a));
            let inputs = vec![Some(of_b), Some(of_b)];
            let squared = self.define("Mul", vec![], inputs, NewValue::of(b));
            let inputs = vec![Some(negative), Some(squared)];
            let quotient = self.define("Div", vec![], inputs, NewValue::of(dy));
            let inputs = vec![Some(of_dy), Some(quotient)];
            let whole = self.define("Mul", vec![], inputs, NewValue::of(dy));
            self.summed_up(whole, *axes.get(1)?, shape_b, db);
        }
        Some(())
    }

    fn summed_up(
        &mut self,
        whole: ValueNumber,
        axes: Option<ValueNumber>,
        shape: ValueNumber,
        output: TensorId,
    ) {
        let one = |name| (name, AttributeValue::Int(1));
        let reduced = computation(
            "com.microsoft",
            "ReduceSumTraining",
            vec![one("keepdims"), one("noop_with_empty_axes")],
            vec![Some(whole), axes],
        );
        let element = self.graph.tensor(output).element;
        let reduced = self.define_value(reduced, element, None);
        let inputs = vec![Some(reduced), Some(shape)];
        self.equate("", "Reshape", vec![], inputs, output);
    }
}
