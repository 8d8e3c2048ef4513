"""Trains a small network on the device ``acme``, first eagerly, then with torch.compile."""

import torch

torch.manual_seed(0)
x = torch.randn(256, 16)
y = x.sin().sum(1, keepdim=True)

for kind in ("eager", "compiled"):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to("acme")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = torch.compile(model) if kind == "compiled" else model
    inputs, targets = x.to("acme"), y.acme()
    for epoch in range(60):
        loss = torch.nn.functional.mse_loss(step(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 20 == 19:
            print(f"{kind}: epoch {epoch + 1}, loss {loss.item():.4f} on {loss.device}")

print(torch.acme.get_device_name(), torch.acme.plugin_path())
