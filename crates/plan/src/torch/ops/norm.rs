//! Layer norm.

use super::output;
use crate::torch::autocast::raised;
use crate::torch::autograd::{record, recorded};
use crate::torch::{Dtype, Layout, Tensor};
use smallvec::smallvec;

/// `F.layer_norm(x, weight, bias)` over the last dimension. Saves input, mean, 1/deviation and weight; backward makes all
/// three gradients in one op.
pub(crate) fn layer_norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let bias = bias.map(raised);
    let (weight, x) = (raised(weight), raised(x));
    let torch = x.torch();
    let inputs: Vec<&Tensor> = [&x, &weight].into_iter().chain(&bias).collect();
    let recorded = recorded(torch, &inputs);
    let saved = recorded.then(|| (bias.as_ref().map(Tensor::save), x.save(), weight.save()));
    let normed = output(torch, "native_layer_norm", x.layout().packed(), x.dtype());
    let statistic = || torch.empty(x.layout().packed().narrow_last(1).packed(), Dtype::F32);
    let statistics = [statistic(), statistic()];
    torch.reads(&inputs);
    let Some(saved) = saved else { return normed };
    let statistics = statistics.map(|statistic| statistic.save());
    let (x_layout, width) = (x.layout().packed(), weight.layout().packed());
    let parameter_dtype = weight.dtype();
    let needs: Vec<bool> = inputs.iter().map(|input| input.requires_grad()).collect();
    record(normed, &inputs, move |grad| {
        let (_bias, x, weight) = (saved.0.as_ref().map(|s| s.unpack()), saved.1.unpack(), saved.2.unpack());
        let [mean, deviation] = statistics.each_ref().map(|s| s.unpack());
        let torch = grad.torch();
        torch.launch("native_layer_norm_backward");
        torch.reads(&[grad, &x, &mean, &deviation, &weight]);
        let make = |at: usize, layout: &Layout, dtype| {
            needs.get(at).is_some_and(|needs| *needs).then(|| torch.empty(layout.clone(), dtype))
        };
        let for_x = make(0, &x_layout, grad.dtype());
        let for_weight = make(1, &width, parameter_dtype);
        smallvec![for_x, for_weight, make(2, &width, parameter_dtype)]
    })
}
