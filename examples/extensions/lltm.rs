//! LLTM, the cell of PyTorch's tutorial on C++ extensions: an LSTM that forgets nothing. lltm.py can load it in
//! place of lltm.cpp.

use tenure_extension::{Result, Tensor, attach, cat, no_grad};

// The derivatives of the activations.
fn d_sigmoid(z: &Tensor) -> Result<Tensor> {
    let s = z.sigmoid()?;
    (1.0 - &s) * s
}

fn d_tanh(z: &Tensor) -> Result<Tensor> {
    1.0 - z.tanh()?.square()?
}

fn d_elu(z: &Tensor) -> Result<Tensor> {
    z.minimum(&(z * 0.0)?)?.exp()
}

tenure_extension::functions! {
    /// Returns the new state and cell, and what backward() needs.
    fn forward(
        input: &Tensor,
        weights: &Tensor,
        bias: &Tensor,
        old_h: &Tensor,
        old_cell: &Tensor,
    ) -> Result<Vec<Tensor>> {
        let x = cat(&[old_h, input], 1)?;
        let gate_weights = x.linear(weights, Some(bias))?;
        let gates = gate_weights.chunk(3, 1)?;
        let input_gate = gates[0].sigmoid()?;
        let output_gate = gates[1].sigmoid()?;
        let candidate_cell = gates[2].elu(1.0)?;
        let new_cell = (old_cell + &candidate_cell * &input_gate)?;
        let new_h = (new_cell.tanh()? * &output_gate)?;
        Ok(vec![new_h, new_cell, input_gate, output_gate, candidate_cell, x, gate_weights])
    }

    /// Returns the gradients of forward()'s parameters.
    fn backward(
        grad_h: &Tensor,
        grad_cell: &Tensor,
        new_cell: &Tensor,
        input_gate: &Tensor,
        output_gate: &Tensor,
        candidate_cell: &Tensor,
        x: &Tensor,
        gate_weights: &Tensor,
        weights: &Tensor,
    ) -> Result<Vec<Tensor>> {
        let gates = gate_weights.chunk(3, 1)?;
        let d_new_cell = (d_tanh(new_cell)? * output_gate * grad_h + grad_cell)?;
        let d_gates = cat(
            &[
                &(candidate_cell * &d_new_cell * d_sigmoid(&gates[0])?)?,
                &(new_cell.tanh()? * grad_h * d_sigmoid(&gates[1])?)?,
                &(input_gate * &d_new_cell * d_elu(&gates[2])?)?,
            ],
            1,
        )?;
        let state = grad_h.size(1)?;
        let d_x = d_gates.matmul(weights)?;
        Ok(vec![
            d_x.narrow(1, state, d_x.size(1)? - state)?,
            d_gates.transpose(0, 1)?.matmul(x)?,
            d_gates.sum(&[0], false)?,
            d_x.narrow(1, 0, state)?,
            d_new_cell,
        ])
    }

    /// Returns the new state and cell, with a formula for gradients.
    fn cell(
        input: &Tensor,
        weights: &Tensor,
        bias: &Tensor,
        old_h: &Tensor,
        old_cell: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let results = no_grad(|| forward(input, weights, bias, old_h, old_cell))?;
        let [new_h, new_cell, others @ ..] = results.as_slice() else { unreachable!("forward() returns seven") };
        let mut saved = vec![new_cell];
        saved.extend(others);
        saved.push(weights);
        attach("lltm", &[new_h, new_cell], &[input, weights, bias, old_h, old_cell], &saved, |saved, grads| {
            let [new_cell, input_gate, output_gate, candidate_cell, x, gate_weights, weights] = saved else {
                unreachable!("cell() saves seven")
            };
            let zeros = (new_cell * 0.0)?;
            let [grad_h, grad_cell] = [0, 1].map(|output| grads[output].as_ref().unwrap_or(&zeros));
            let grads = backward(
                grad_h, grad_cell, new_cell, input_gate, output_gate, candidate_cell, x, gate_weights, weights,
            )?;
            Ok(grads.into_iter().map(Some).collect())
        })?;
        Ok((new_h.clone(), new_cell.clone()))
    }
}
