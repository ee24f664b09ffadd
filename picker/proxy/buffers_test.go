package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bodies lie in memory that other requests have used: no engine may see anything of those, also when clients leave at any
// time and engines answer before they have read.
func TestBodiesStayApart(t *testing.T) {
	e := engine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Early") != "" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client left
		}
		var got struct {
			User     string
			Messages []struct{ Content string }
		}
		if err := json.Unmarshal(text, &got); err != nil || len(got.Messages) != 1 || strings.Trim(got.Messages[0].Content, got.User+" ") != "" {
			t.Errorf("engine got a mixed body (%v): user %q, %.100q", err, got.User, text)
		}
		send(w, firstEvent, doneEvent)
	})
	g := newGateway(t, Default(), e.URL)
	var client http.Client
	defer client.CloseIdleConnections()
	var wg sync.WaitGroup
	for worker := range 6 {
		rng := rand.New(rand.NewPCG(uint64(worker), 1))
		wg.Go(func() {
			for range 25 {
				user := string(rune('a' + rng.IntN(26)))
				body := fmt.Sprintf(`{"model":"m","user":%q,"stream":%v,"messages":[{"role":"user","content":%q}]}`, user, rng.IntN(2) == 0, strings.Repeat(user+" ", rng.IntN(50_000)))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if rng.IntN(4) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Duration(rng.IntN(2000))*time.Microsecond)
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+chatPath, strings.NewReader(body))
				if err != nil {
					t.Error(err)
				}
				if rng.IntN(4) == 0 {
					req.Header.Set("X-Early", "1")
				}
				if resp, err := client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body) // the client may leave in the middle
					resp.Body.Close()
				}
				cancel()
			}
		})
	}
	wg.Wait()
}
