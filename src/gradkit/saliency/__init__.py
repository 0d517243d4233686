"""Saliency: which entries of an input a model's number depends on, and by how much.

Every function returns signed tensors shaped like what ``wrt`` names, by default the
floating inputs; ``absolute`` and ``channel_sum`` reduce them.
"""

from typing import TYPE_CHECKING

from gradkit._offered import offering
from gradkit.saliency._completeness import completeness_gap
from gradkit.saliency._curves import Curve, deletion_curve, insertion_curve
from gradkit.saliency._expected import expected_gradients
from gradkit.saliency._grad_cam import grad_cam
from gradkit.saliency._gradient import gradient, gradient_times_input
from gradkit.saliency._guided import guided_backprop
from gradkit.saliency._integrated import integrated_gradients
from gradkit.saliency._occlusion import occlusion
from gradkit.saliency._randomization import randomization_check
from gradkit.saliency._randomization_report import RandomizationReport
from gradkit.saliency._reduce import absolute, channel_max, channel_norm, channel_sum
from gradkit.saliency._registry import METHODS
from gradkit.saliency._sensitivity import sensitivity
from gradkit.saliency._smooth import smoothgrad

__all__ = [
    "METHODS",
    "Curve",
    "RandomizationReport",
    "absolute",
    "channel_max",
    "channel_norm",
    "channel_sum",
    "completeness_gap",
    "deletion_curve",
    "expected_gradients",
    "grad_cam",
    "gradient",
    "gradient_times_input",
    "guided_backprop",
    "insertion_curve",
    "integrated_gradients",
    "occlusion",
    "randomization_check",
    "sensitivity",
    "smoothgrad",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = offering(
        globals(),
        {
            "Saliency": "here it is 'gradient', a function: gradient(model, inputs, 3)",
            "GradientShap": "here it is 'expected_gradients'",
            "InputXGradient": "here it is 'gradient_times_input'",
            "NoiseTunnel": "here it is 'smoothgrad'",
            "LayerGradCam": "here it is 'grad_cam'",
        },
    )
