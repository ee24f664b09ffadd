package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/grapevine-llm/grapevine/deploy/inject"
)

const (
	// maxReviewBytes: an object of the API server has at most 3 MiB (k8s.io/apiserver,
	// MaxRequestBodyBytes), and a review of its creation holds it once.
	maxReviewBytes = 4 << 20
	// maxReviewParts bounds the fields and items, told by their commas: an item of two
	// bytes may become a container of a thousand. A pod with 10,000 variables has fewer.
	maxReviewParts = 1 << 16
)

// Reasons why a pod was let through unseen.
const (
	reasonBody  = "unreadable review"
	reasonPod   = "unreadable pod"
	reasonPanic = "panic"
	reasonOld   = "cluster too old"
)

// Handler answers reviews:
//
//	POST /inject/agent, /inject/configure   the namespace's label says so
//	POST /inject/default                    the namespace's label has no value
//	POST /inject                            the namespace has no label, the pod itself may
//
// The level comes with the path since the webhook configuration can select
// namespaces by label: the injector need not be allowed to read them.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /inject", func(w http.ResponseWriter, r *http.Request) { s.review(w, r, inject.Namespace{}) })
	mux.HandleFunc("POST /inject/{level}", func(w http.ResponseWriter, r *http.Request) {
		level := r.PathValue("level")
		if level == "default" {
			level = ""
		}
		s.review(w, r, inject.Namespace{Labelled: true, Label: level})
	})
	return mux
}

// review answers one review. A request that is none gets an error, which a failure
// policy of Ignore turns into leave.
func (s *Server) review(w http.ResponseWriter, r *http.Request, ns inject.Namespace) {
	start := time.Now()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReviewBytes))
	if err == nil && bytes.Count(body, []byte{','}) > maxReviewParts {
		err = fmt.Errorf("over %d parts", maxReviewParts)
	}
	var in admissionv1.AdmissionReview
	if err == nil {
		err = json.Unmarshal(body, &in)
	}
	if err == nil && in.Request == nil {
		err = errors.New("no request in it")
	}
	if err != nil {
		s.metrics.errors.WithLabelValues(reasonBody).Inc()
		s.log.Warn("no admission review", slog.Any(keyErr, err))
		http.Error(w, "give an AdmissionReview of admission.k8s.io/v1", http.StatusBadRequest)
		return
	}
	answer := s.decide(in.Request, ns)
	answer.UID, answer.Allowed = in.Request.UID, true
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{ // the API server went away
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: answer,
	})
	s.metrics.seconds.Observe(time.Since(start).Seconds())
}

// decide fills patch and warnings. It never denies.
func (s *Server) decide(req *admissionv1.AdmissionRequest, ns inject.Namespace) (answer *admissionv1.AdmissionResponse) {
	failed := func(reason string, err error) *admissionv1.AdmissionResponse {
		s.metrics.errors.WithLabelValues(reason).Inc()
		s.log.Error("pod let through unseen", slog.Any(keyErr, err), slog.String(keyNamespace, req.Namespace))
		return &admissionv1.AdmissionResponse{Warnings: []string{"grapevine: no agent is added: " + err.Error()}}
	}
	defer func() {
		if v := recover(); v != nil {
			answer = failed(reasonPanic, fmt.Errorf("a fault in the injector, please report it: %v", v))
		}
	}()
	if s.cfg.Disabled || req.Operation != admissionv1.Create || req.SubResource != "" || req.Kind.Kind != "Pod" {
		return s.done(req, nil, inject.Result{Outcome: inject.LeftOff})
	}
	pod := new(corev1.Pod)
	if err := json.Unmarshal(req.Object.Raw, pod); err != nil {
		return failed(reasonPod, fmt.Errorf("read pod: %w", err))
	}
	res := s.cfg.Options.Inject(pod, ns)
	injects := res.Outcome == inject.InjectedAgent || res.Outcome == inject.InjectedConfigure
	if why := s.tooOld(); injects && why != "" {
		return failed(reasonOld, errors.New(why))
	}
	return s.done(req, pod, res)
}

func (s *Server) done(req *admissionv1.AdmissionRequest, pod *corev1.Pod, res inject.Result) *admissionv1.AdmissionResponse {
	s.metrics.admissions.WithLabelValues(string(res.Outcome)).Inc()
	answer := &admissionv1.AdmissionResponse{Warnings: res.Warnings}
	if pod != nil {
		name := pod.Name
		if name == "" {
			name = pod.GenerateName
		}
		s.log.Debug("pod", slog.String(keyNamespace, req.Namespace), slog.String(keyPod, name), slog.String(keyOutcome, string(res.Outcome)))
	}
	if len(res.Patch) == 0 {
		return answer
	}
	patch, err := json.Marshal(res.Patch)
	if err != nil {
		panic(err) // types of Kubernetes' API always encode
	}
	kind := admissionv1.PatchTypeJSONPatch
	answer.Patch, answer.PatchType = patch, &kind
	return answer
}
