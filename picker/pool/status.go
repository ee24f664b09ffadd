package pool

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Status is one pool at a moment, for a person or a page.
type Status struct {
	Name        string  `json:"name"` // namespace/name
	Kind        string  `json:"kind"` // InferencePool or Service
	Synced      bool    `json:"synced"`
	Endpoints   int     `json:"endpoints"`       // eligible
	NotReady    int     `json:"not_ready"`       // pods, or members of the Service
	Terminating int     `json:"terminating"`     // marked for deletion
	AgeSeconds  float64 `json:"age_seconds"`     // for how long the API server has not been heard; 0: the watch works
	Error       string  `json:"error,omitempty"` // why, with the remedy
	Note        string  `json:"note,omitempty"`  // what else is not as it should be
}

// Status returns what is known of each pool, by name; what is said of objectives comes last.
func (w *Watcher) Status() []Status {
	now := time.Now()
	s := w.now.Load()
	out := make([]Status, 0, len(w.names))
	for _, name := range w.names {
		st := Status{Name: name, Kind: w.kinds[name]}
		if known := s.sets[name]; known != nil {
			st.Synced = true
			st.Endpoints, st.NotReady, st.Terminating, st.Note = len(known.endpoints), known.notReady, known.terminating, known.note
		}
		if h, bad := s.health[name]; bad {
			st.Error, st.AgeSeconds = h.problem, now.Sub(h.since).Seconds()
		}
		out = append(out, st)
	}
	for namespace, m := range w.objectives {
		if _, h := m.state(); h.reason != "" {
			i := slices.IndexFunc(out, func(s Status) bool { return strings.HasPrefix(s.Name, namespace+"/") })
			if i >= 0 && out[i].Note == "" {
				out[i].Note = "objectives: " + h.problem
			}
		}
	}
	return out
}

// Waiting says why Synced is false, for a person; empty: it is true.
func (w *Watcher) Waiting() string {
	var out []string
	for _, s := range w.Status() {
		if s.Synced {
			continue
		}
		why := "not read yet"
		if s.Error != "" {
			why = s.Error
		}
		out = append(out, fmt.Sprintf("%s %s: %s", s.Kind, s.Name, why))
	}
	return strings.Join(out, "; ")
}
