package picker

import (
	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// Hasher hashes blocks as this pool does.
func (p *Picker) Hasher() blockhash.Hasher { return p.hasher }

// BlockSizes returns the block sizes of the pool's endpoints, in tokens, each once; none without endpoints. The caller
// must not change the slice. It takes no lock.
func (p *Picker) BlockSizes() []int { return p.table.Load().sizes }

// EngineURL returns the base URL of an engine that serves a model, for questions about prompts: the first one that can be
// reached. Errors: ErrUnknownModel, ErrNoEndpoints.
func (p *Picker) EngineURL(model string) (string, error) {
	t := p.table.Load()
	serves, err := t.serving(model)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock()
	for i, e := range t.endpoints {
		if (serves == nil || i < len(serves) && serves[i]) && e.host.usable(now, p.cfg.Probe != nil) {
			return e.public.URL, nil
		}
	}
	return "", ErrNoEndpoints
}

// IsAdapter reports whether an agent has said that a model is a LoRA adapter.
func (p *Picker) IsAdapter(model string) bool { return p.BaseModel(model) != "" }

// BaseModel returns the model that a LoRA adapter stands on; empty if model is no adapter as far as agents have said.
func (p *Picker) BaseModel(model string) string {
	for _, s := range p.table.Load().slots {
		if s.info == nil {
			continue
		}
		for _, m := range s.info.Models {
			if m.Name == model {
				return m.Parent
			}
		}
	}
	return ""
}
