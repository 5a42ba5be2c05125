"""PyTorch modules as models of ``tenure serve``.

A model's ``config.toml`` names a function, ``python = "model.py:load"``. It is called with the model's folder and
returns an ``nn.Module`` on the CPU. Functions of `tenure.serving.hugging_face` load Hugging Face folders, which need no
``config.toml``. The server starts ``python3 -m tenure.serving.worker`` for such models; with ``--device cuda``, one
worker for each GPU, in which a `tenure.torch.Switcher` computes the models.
"""
