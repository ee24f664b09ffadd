package prompt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grapevine-llm/grapevine/picker/openai"
)

// twin is an engine that tokenizes as the files in dir do, or not.
type twin struct {
	*httptest.Server
	wrong  atomic.Bool // an id of every prompt is another
	down   atomic.Bool
	closed atomic.Bool // of the render endpoints
	asked  atomic.Int64
}

func newTwin(t *testing.T, dir string) *twin {
	t.Helper()
	truth, err := New(Config{Models: map[string]string{"tiny": dir}})
	if err != nil {
		t.Fatal(err)
	}
	e := &twin{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.asked.Add(1)
		b, _ := io.ReadAll(r.Body)
		path, render := strings.CutSuffix(r.URL.Path, "/render")
		if e.down.Load() || render && e.closed.Load() {
			http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
			return
		}
		if !render {
			path = completionPath
			if bytes.Contains(b, []byte(`"messages"`)) {
				path = chatPath
			}
		}
		req, err := openai.Parse(path, b)
		if err != nil {
			t.Error(err)
			return
		}
		res, _ := truth.Resolve(r.Context(), req, "")
		ids := slices.Clone(res.TokenIDs)
		if e.wrong.Load() {
			ids[len(ids)-8]++
		}
		switch answer := map[string]any{"token_ids": ids}; {
		case !render:
			_ = json.NewEncoder(w).Encode(map[string]any{"tokens": ids})
		case path == completionPath:
			_ = json.NewEncoder(w).Encode([]any{answer})
		default:
			_ = json.NewEncoder(w).Encode(answer)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

// TestStartChecks goes through what happens to engines, one comparison round
// after each step.
func TestStartChecks(t *testing.T) {
	dir := tinyDir(t)
	type step struct {
		name  string
		do    func(a, b *twin, pool *[]Engine)
		rung  string
		equal uint64 // comparisons so far
		diff  uint64
		fail  uint64
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"both agree, each is asked once", []step{
			{"start", func(*twin, *twin, *[]Engine) {}, RungOwn, 2, 0, 0},
			{"again", func(*twin, *twin, *[]Engine) {}, RungOwn, 2, 0, 0},
			{"restart", func(_, _ *twin, pool *[]Engine) { (*pool)[0].Epoch++ }, RungOwn, 3, 0, 0},
		}},
		{"one disagrees until it is restarted", []step{
			{"start", func(a, _ *twin, _ *[]Engine) { a.wrong.Store(true) }, RungRender, 1, 1, 0},
			{"the other restarts", func(_, _ *twin, pool *[]Engine) { (*pool)[1].Epoch++ }, RungRender, 2, 1, 0},
			{"it agrees, but has not restarted", func(a, _ *twin, _ *[]Engine) { a.wrong.Store(false) }, RungRender, 2, 1, 0},
			{"restart", func(_, _ *twin, pool *[]Engine) { (*pool)[0].Epoch++ }, RungOwn, 3, 1, 0},
		}},
		{"one disagrees until it is gone and another has come", []step{
			{"start", func(a, _ *twin, _ *[]Engine) { a.wrong.Store(true) }, RungRender, 1, 1, 0},
			{"it leaves", func(_, _ *twin, pool *[]Engine) { *pool = (*pool)[1:] }, RungRender, 1, 1, 0},
			{"the other restarts", func(_, _ *twin, pool *[]Engine) { (*pool)[0].Epoch++ }, RungOwn, 2, 1, 0},
		}},
		{"one is not up yet", []step{
			{"start", func(a, _ *twin, _ *[]Engine) { a.down.Store(true) }, RungOwn, 1, 0, 1},
			{"too early", func(a, _ *twin, _ *[]Engine) { a.down.Store(false) }, RungOwn, 1, 0, 1},
			{"restart", func(_, _ *twin, pool *[]Engine) { (*pool)[0].Epoch++ }, RungOwn, 2, 0, 1},
		}},
		{"render is closed", []step{
			{"start", func(a, b *twin, _ *[]Engine) { a.closed.Store(true); b.closed.Store(true); b.wrong.Store(true) }, RungTokenize, 1, 1, 0},
		}},
		{"one serves another model", []step{
			{"start", func(a, _ *twin, pool *[]Engine) {
				a.wrong.Store(true)
				(*pool)[0].Models, (*pool)[1].Models = []string{"other"}, []string{"other", "tiny"}
			}, RungOwn, 1, 0, 0},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := newTwin(t, dir), newTwin(t, dir)
			pool := []Engine{{URL: a.URL, Epoch: 1}, {URL: b.URL, Epoch: 1}}
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			r, err := New(Config{Models: map[string]string{"tiny": dir}, Client: client, Deadline: 10 * time.Second, Engines: func() []Engine { return pool }})
			if err != nil {
				t.Fatal(err)
			}
			seen := starts{}
			for _, s := range tt.steps {
				s.do(a, b, &pool)
				if s.name == "restart" { // a closed endpoint would be left alone for a while
					clear(r.engine.closed)
				}
				r.checkStarts(t.Context(), seen, time.Now())
				res, err := r.Resolve(t.Context(), parse(t, chatPath, hello), b.URL)
				if err != nil || res.Rung != s.rung {
					t.Errorf("%s: rung %s (%s, %v), want %s", s.name, res.Rung, res.Reason, err, s.rung)
				}
				st := r.Status().Models[0]
				if c := st.Checks; c["equal"] != s.equal || c["different"] != s.diff || c["failed"] != s.fail {
					t.Errorf("%s: checks %v, want %d equal, %d different, %d failed", s.name, c, s.equal, s.diff, s.fail)
				}
				if s.diff > 0 && (st.Last == nil || st.Last.Probe != 0 || st.Last.At != st.Last.OwnTokens-8 || st.Last.OwnHash == st.Last.EngineHash) {
					t.Errorf("%s: last mismatch %+v", s.name, st.Last)
				}
				if res.Verified != (s.rung == RungOwn && s.equal > 0) {
					t.Errorf("%s: verified = %v", s.name, res.Verified)
				}
			}
		})
	}
}

// TestSamples: one in N requests is compared; what is logged of a difference
// holds no text unless that is asked for.
func TestSamples(t *testing.T) {
	const secret = "my secret question"
	dir := tinyDir(t)
	body := strings.Replace(hello, "Hello world", secret, 1)
	for _, logText := range []bool{false, true} {
		e := newTwin(t, dir)
		client := &http.Client{Transport: &http.Transport{}}
		defer client.CloseIdleConnections()
		var logged bytes.Buffer
		r, err := New(Config{
			Models: map[string]string{"tiny": dir}, Client: client, CheckEvery: 3, LogPromptText: logText,
			Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		compared := func(n int) (samples int) {
			for range n {
				if res, err := r.Resolve(t.Context(), parse(t, chatPath, body), e.URL); err != nil || res.Rung != RungOwn {
					t.Fatal(res, err)
				}
				select {
				case s := <-r.sampler.out:
					samples++
					r.checkSample(t.Context(), s)
				default:
				}
			}
			return samples
		}
		if got := compared(9); got != 3 {
			t.Errorf("%d of 9 requests were compared, want 3", got)
		}
		if m := r.Status().Models[0]; m.Checks["equal"] != 3 || m.Rung != RungOwn || !m.Verified {
			t.Errorf("after three equal comparisons: %+v", m)
		}
		e.wrong.Store(true)
		compared(3)
		if m := r.Status().Models[0]; m.Mismatches != 1 || m.Rung != RungRender || m.Verified || m.Last.Probe != -1 || m.Problem == "" {
			t.Errorf("after a difference: %+v", m)
		}
		if got := strings.Contains(logged.String(), "secret"); got != logText {
			t.Errorf("prompt text in the log: %v, want %v:\n%s", got, logText, &logged)
		}
		if !strings.Contains(logged.String(), "own_hash=") {
			t.Errorf("no hash in the log:\n%s", &logged)
		}
	}
}

func TestRun(t *testing.T) {
	dir := tinyDir(t)
	e := newTwin(t, dir)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	r, err := New(Config{Models: map[string]string{"tiny": dir}, Client: client, Engines: func() []Engine { return []Engine{{URL: e.URL}} }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	for until := time.Now().Add(10 * time.Second); !r.Status().Models[0].Verified; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("no engine was compared with")
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
}

// TestWrongFiles: whatever a folder holds, New says what is wrong and where,
// and requests get the next rung. Only a folder that is not there is refused.
func TestWrongFiles(t *testing.T) {
	good := tinyDir(t)
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(good, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tokenizerJSON, config := read("tokenizer.json"), read("tokenizer_config.json")
	tests := []struct {
		name       string
		spoil      func(dir string) error
		log        []string
		chat, text string // rungs
	}{
		{"nothing", func(string) error { return nil }, nil, RungOwn, RungOwn},
		{"no tokenizer.json", func(dir string) error { return os.Remove(filepath.Join(dir, "tokenizer.json")) },
			[]string{"tokenizer.json", "no such file"}, RungRender, RungRender},
		{"truncated tokenizer.json", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "tokenizer.json"), tokenizerJSON[:len(tokenizerJSON)/2], 0o600)
		}, []string{"tokenizer.json: "}, RungRender, RungRender},
		{"unknown component", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "tokenizer.json"), bytes.Replace(tokenizerJSON, []byte(`"ByteLevel"`), []byte(`"Unheard"`), -1), 0o600)
		}, []string{"tokenizer.json: ", "Unheard"}, RungRender, RungRender},
		{"huge tokenizer.json", func(dir string) error { return os.Truncate(filepath.Join(dir, "tokenizer.json"), 200<<20) },
			[]string{"tokenizer.json", "200 MB"}, RungRender, RungRender},
		{"no tokenizer_config.json", func(dir string) error { return os.Remove(filepath.Join(dir, "tokenizer_config.json")) },
			[]string{"tokenizer_config.json"}, RungRender, RungOwn},
		{"truncated tokenizer_config.json", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), config[:len(config)/2], 0o600)
		}, []string{"tokenizer_config.json"}, RungRender, RungRender}, // it says which tokenizer it is
		{"template syntax error", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("{% for m in messages %}\n{{ m. }}"), 0o600)
		}, []string{"chat template", "line 2"}, RungRender, RungOwn},
		{"huge template", func(dir string) error {
			path := filepath.Join(dir, "chat_template.jinja")
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 200<<20))
		}, []string{"chat_template.jinja", "209715200 bytes"}, RungRender, RungOwn},
	}
	_, url, client := serve(t, map[string]answer{
		chatPath + "/render": {200, `{"token_ids":[5]}`, 0}, completionPath + "/render": {200, `[{"token_ids":[5]}]`, 0},
	})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := tinyDir(t)
			if err := tt.spoil(dir); err != nil {
				t.Fatal(err)
			}
			var logged bytes.Buffer
			r, err := New(Config{Models: map[string]string{"tiny": dir}, Client: client, Deadline: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range append(tt.log, dir) {
				if len(tt.log) > 0 && !strings.Contains(logged.String(), want) {
					t.Errorf("log does not say %q:\n%s", want, &logged)
				}
			}
			for path, want := range map[string]string{chatPath: tt.chat, completionPath: tt.text} {
				body := hello
				if path == completionPath {
					body = `{"model":"tiny","prompt":"Hello world"}`
				}
				if res, err := r.Resolve(t.Context(), parse(t, path, body), url); err != nil || res.Rung != want {
					t.Errorf("%s: rung %s (%s, %v), want %s", path, res.Rung, res.Reason, err, want)
				}
			}
			if p := r.Status().Models[0].Problem; p == "" != (len(tt.log) == 0) {
				t.Errorf("status says %q", p)
			}
		})
	}
	for name, dir := range map[string]string{"no folder": filepath.Join(good, "nowhere"), "a file": filepath.Join(good, "tokenizer.json")} {
		if _, err := New(Config{Models: map[string]string{"m": dir}}); err == nil || !strings.Contains(err.Error(), "model m: open model folder: ") {
			t.Errorf("%s: New = %v", name, err)
		}
	}
}

func TestUnserved(t *testing.T) {
	m := &ownModel{names: []string{"a", "b"}}
	for _, tt := range []struct {
		name    string
		engines []Engine
		want    bool
	}{
		{"no engine yet", nil, false},
		{"one does not say", []Engine{{Models: []string{"x"}}, {}}, false},
		{"one serves a second name", []Engine{{Models: []string{"x"}}, {Models: []string{"b"}}}, false},
		{"none serves it", []Engine{{Models: []string{"x"}}, {Models: []string{"y"}}}, true},
	} {
		if got := unserved(m, tt.engines); got != tt.want {
			t.Errorf("%s: unserved %t, want %t", tt.name, got, tt.want)
		}
	}
}
