package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// client speaks to the API server as one user. Safe for concurrent use.
type client struct {
	base  string
	token string
	http  *http.Client
}

func newClient(base, token string, ca []byte) *client {
	return &client{base: base, token: token, http: &http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{TLSClientConfig: trust(ca), MaxIdleConnsPerHost: 64, ForceAttemptHTTP2: true},
	}}
}

// apiError is an answer of the API server other than success.
type apiError struct {
	metav1.Status
	request string
}

func (e *apiError) Error() string { return fmt.Sprintf("%s: %d: %s", e.request, e.Code, e.Message) }

// code is the HTTP status of an error, 0 where there was no answer.
func code(err error) int {
	var api *apiError
	if errors.As(err, &api) {
		return int(api.Code)
	}
	return 0
}

// raw sends one request and returns the answer's body.
func (c *client) raw(method, path, contentType string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Accept", "application/json")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		problem := &apiError{request: method + " " + path}
		if json.Unmarshal(out, &problem.Status) != nil || problem.Message == "" {
			problem.Message = string(out)
		}
		problem.Code = int32(resp.StatusCode)
		return nil, problem
	}
	return out, nil
}

// do sends in as JSON, unless nil, and reads the answer into out, unless nil.
func (c *client) do(method, path string, in, out any) error {
	var body []byte
	kind := "application/json"
	switch v := in.(type) {
	case nil:
	case patch:
		body, kind = v, "application/merge-patch+json"
	default:
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	answer, err := c.raw(method, path, kind, body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

// patch is a JSON merge patch as do sends it.
type patch []byte

func (c *client) get(path string, out any) error { return c.do(http.MethodGet, path, nil, out) }
func (c *client) create(path string, in, out any) error {
	return c.do(http.MethodPost, path, in, out)
}

// patchObject applies a JSON merge patch.
func (c *client) patchObject(t *testing.T, path, merge string) {
	t.Helper()
	if err := c.do(http.MethodPatch, path, patch(merge), nil); err != nil {
		t.Fatal(err)
	}
}

// remove deletes an object at once.
func (c *client) remove(path string) error {
	return c.do(http.MethodDelete, path+"?gracePeriodSeconds=0", nil, nil)
}

// serviceAccount returns a client that acts as a ServiceAccount.
func (p *plane) serviceAccount(t *testing.T, namespace, name string) *client {
	t.Helper()
	hour := int64(3600)
	req := authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}}
	if err := p.create("/api/v1/namespaces/"+namespace+"/serviceaccounts/"+name+"/token", req, &req); err != nil {
		t.Fatal(err)
	}
	return newClient(p.base, req.Status.Token, p.ca)
}
