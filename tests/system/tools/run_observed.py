# SPDX-License-Identifier: Apache-2.0
"""What deft run lets a job's Python observe of its optimizer."""
import os
import pathlib
import unittest

from run_support import RunTest


class Observed(RunTest):
    def observed(self, script, env=None):
        """What deft was told of the optimizers that a job makes with a small stand-in for
        torch.optim."""
        optim = pathlib.Path(self.folder, "python", "torch", "optim")
        optim.mkdir(parents=True, exist_ok=True)
        (optim.parent / "__init__.py").touch()
        (optim / "optimizer.py").write_text(
            "class Optimizer:\n    def __init__(self, params, defaults):\n"
            "        self.defaults = defaults\n"
            "        self.param_groups = [dict(defaults, **group) for group in params or [{}]]\n")
        for place in ("amp", "cuda/amp"):
            amp = optim.parent / place
            amp.mkdir(parents=True, exist_ok=True)
            (amp / "__init__.py").touch()
            (amp.parent / "__init__.py").touch()
            (amp / "grad_scaler.py").write_text("class GradScaler:\n"
                                                "    def __init__(self, enabled=True):\n"
                                                "        self._enabled = enabled\n"
                                                "    def is_enabled(self):\n"
                                                "        return self._enabled\n")
        utils = optim.parent / "nn" / "utils"
        utils.mkdir(parents=True, exist_ok=True)
        (utils.parent / "__init__.py").touch()
        (utils / "__init__.py").write_text("from .clip_grad import clip_grad_norm_, "
                                           "clip_grad_value_\n")
        (utils / "clip_grad.py").write_text("def clip_grad_norm_(parameters, max_norm):\n"
                                            "    return parameters * max_norm\n"
                                            "def clip_grad_value_(parameters, clip_value):\n"
                                            "    pass\n")
        (optim / "__init__.py").write_text(
            "from .optimizer import Optimizer\nclass SGD(Optimizer):\n"
            "    def __init__(self, params, lr, momentum=0, nesterov=False):\n"
            "        super().__init__(params, dict(lr=lr, momentum=momentum, nesterov=nesterov))\n"
            "class AdamW(Optimizer):\n    def __init__(self, params, lr):\n"
            "        super().__init__(params, dict(lr=lr, betas=(0.8, 0.99)))\n")
        (optim.parents[1] / "sitecustomize.py").write_text("print('mine')\n")
        result = self.deft("run", "--mode", "deft", "--log", "info", "--", "/usr/bin/python3", "-c",
                           "import torch.optim as o\n" + script,
                           env={"PYTHONPATH": str(optim.parents[1]), **(env or {})})
        self.assertEqual((result.returncode, result.stdout), (0, "mine\n"), result.stderr)
        return [line.split("the job's optimizer: ")[-1].split("deft INFO ")[-1]
                for line in result.stderr.splitlines() if "the job" in line]

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_the_optimizer_of_a_pytorch_job_is_observed(self):
        self.assertEqual(self.observed("o.SGD([], 0.1, momentum=0.9)"), ["sgd:momentum=0.9,lr=0.1"])
        self.assertEqual(self.observed("o.SGD([], 0.1, momentum=0.9, nesterov=True)"),
                         ["sgd:momentum=0.9,nesterov=1,lr=0.1"])
        self.assertEqual(self.observed("assert o.AdamW([], 1e-3).defaults['lr'] == 1e-3"),
                         ["adamw:momentum=0.8,lr=0.001"])
        self.assertEqual(self.observed("o.SGD([], 0.1); o.AdamW([], 0.1)"),
                         ["sgd:momentum=0,lr=0.1", "unknown"])
        self.assertEqual(self.observed("class Mine(o.SGD): pass\nMine([], 0.1)"), ["unknown"])
        self.assertEqual(self.observed("o.AdamW([], 0.1); o.AdamW([], 0.2)"),
                         ["adamw:momentum=0.8,lr=0.1", "adamw:momentum=0.8"])
        self.assertEqual(self.observed("o.AdamW([{'lr': 1}, {}], 0.2)"), ["adamw:momentum=0.8"])
        self.assertEqual(self.observed("o.SGD([{'momentum': 0.9}], 0.1)"),
                         ["sgd:momentum=0.9,lr=0.1"])
        self.assertEqual(self.observed("o.SGD([{'momentum': 0}, {}], 0.1, momentum=0.9)"),
                         ["unknown"])
        self.assertEqual(self.observed("o.SGD([], 0.1)", {"DEFT_COMPANION": "off"}), [])
        self.assertEqual(self.observed("o.SGD([], 0.1)", {"DEFT_OPTIMIZER": "adam"}), [])

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_what_a_job_says_itself_wins(self):
        for script in ("deft.set_optimizer('adam'); o.SGD([], 0.1)",
                       "o.SGD([], 0.1); deft.set_optimizer('adam')"):
            self.assertEqual(self.observed("import deft\n" + script)[-1], "adam", script)

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_clipping_is_observed_when_it_is_done(self):
        clip = "import torch.nn.utils as u\n"
        said = self.observed(clip + "assert u.clip_grad_norm_(3, max_norm=5) == 15\n"
                                    "u.clip_grad_norm_(1, 1)")
        self.assertEqual(len(said), 1, said)
        self.assertTrue(said[0].endswith("the job clips its gradients"), said)
        self.assertTrue(self.observed(clip +
                                      "u.clip_grad_value_(1, 1)")[0].endswith(
                                          "the job clips its gradients"))
        self.assertEqual(self.observed(clip), [], "a function that is not called")
        self.assertEqual(self.observed(clip + "u.clip_grad_norm_(1, 1)",
                                       {"DEFT_COMPANION": "off"}), [])

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "no /usr/bin/python3")
    def test_a_gradient_scaler_is_observed(self):
        for module in ("torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
            scaler = f"import {module} as s\ns.GradScaler"
            self.assertTrue(self.observed(scaler +
                                          "()")[0].endswith("the job scales its gradients"))
            self.assertEqual(self.observed(scaler + "(enabled=False)"), [])
            self.assertEqual(self.observed(scaler + "()", {"DEFT_COMPANION": "off"}), [])
            self.assertEqual(len(self.observed(scaler + "()", {"DEFT_OPTIMIZER": "adam"})), 1)
