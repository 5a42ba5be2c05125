"""PyTorch modules as models of ``tenure serve``.

A model's ``config.toml`` names a function, ``python = "model.py:load"``, which is called with the model's folder and
returns an ``nn.Module`` on the CPU; functions of `tenure.serving.hugging_face` load Hugging Face folders, which need no
``config.toml``. The server starts ``python3 -m tenure.serving.worker`` for such models, with ``--device cuda`` one for
each GPU: there a `tenure.torch.Switcher` computes them.
"""
