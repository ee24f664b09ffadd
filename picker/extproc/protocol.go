package extproc

import (
	"net/netip"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/grapevine-llm/grapevine/picker"
	"github.com/grapevine-llm/grapevine/picker/inbound"
	"github.com/grapevine-llm/grapevine/picker/openai"
)

// Names of the endpoint picker protocol (gateway-api-inference-extension, docs/proposals/004-endpoint-picker-protocol).
const (
	destination       = "x-gateway-destination-endpoint" // header, and key in namespaceLB
	keyServed         = "x-gateway-destination-endpoint-served"
	keySubset         = "x-gateway-destination-endpoint-subset"
	namespaceLB       = "envoy.lb"
	namespaceSubset   = "envoy.lb.subset_hint"
	headerRequestID   = "x-request-id"
	headerRank        = "x-data-parallel-rank"
	keyGateway        = "x-grapevine-gateway"           // in namespaceLB, ours: who picked, for the observing filter to find it
	headerServiceTime = "x-envoy-upstream-service-time" // Envoy's router sets it on answers of endpoints, and on no other
)

// Names that llm-d has beside the protocol (llm-d-router, pkg/epp/metadata/consts.go and pkg/epp/flowcontrol).
const (
	headerObjective    = "x-llm-d-inference-objective"
	headerOldObjective = "x-gateway-inference-objective"
	headerFairness     = "x-llm-d-inference-fairness-id"
	headerDropped      = "x-llm-d-request-dropped-reason"

	droppedSaturated = "rejected-saturated"
	droppedNobody    = "rejected-no-endpoints"
	droppedExpired   = "rejected-ttl-expired"
	droppedShutdown  = "rejected-shutting-down"
)

// maxPiece is what one StreamedBodyResponse carries at most: other pickers keep to it, so it is what Envoy is used to.
const maxPiece = 62_000

// headers are those of one request or response, in the order in which they came; names are in lower case.
type headers []*corev3.HeaderValue

// Get returns the first value of a header.
func (h headers) Get(name string) string {
	for _, v := range h {
		if strings.EqualFold(v.Key, name) {
			if len(v.RawValue) > 0 {
				return string(v.RawValue)
			}
			return v.Value
		}
	}
	return ""
}

// subsetOf returns the addresses that Envoy restricts the choice to, not nil if it does.
func subsetOf(md *corev3.Metadata) []string {
	v, hinted := md.GetFilterMetadata()[namespaceSubset].GetFields()[keySubset]
	if !hinted {
		return nil
	}
	subset := []string{}
	add := func(list string) {
		for address := range strings.SplitSeq(list, ",") {
			if address = canonical(address); address != "" {
				subset = append(subset, address)
			}
		}
	}
	add(v.GetStringValue())
	for _, item := range v.GetListValue().GetValues() {
		add(item.GetStringValue())
	}
	return subset
}

// servedBy returns the address of the endpoint that served, "" where Envoy does not tell.
func servedBy(md *corev3.Metadata) string {
	return canonical(md.GetFilterMetadata()[namespaceLB].GetFields()[keyServed].GetStringValue())
}

// canonical writes an address as the picker does.
func canonical(address string) string {
	address = strings.TrimSpace(address)
	if a, err := netip.ParseAddrPort(address); err == nil {
		return a.String()
	}
	return address
}

// pick is what is told of a decision.
type pick struct {
	list      string // host:port, then those to be tried after it
	rank      int    // of the endpoint; -1: it is the only one
	requestID string // to be set; "": it has one
	gateway   string // address host:port of who picked; "": there is no telling
}

// pickOf names the endpoints of a decision. The header for the rank is the same for all of them.
func pickOf(d *picker.Decision) pick {
	p := pick{list: d.Endpoint.Address(), rank: -1}
	if d.Endpoint.Ranks > 1 {
		p.rank = d.Endpoint.Rank
	}
	for _, e := range d.Fallbacks {
		if e.Ranks > p.rank {
			p.list += "," + e.Address()
		}
	}
	return p
}

// mutation puts a pick into a request's headers.
func (p *pick) mutation() *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{set(destination, p.list)}}
	if p.rank >= 0 {
		m.SetHeaders = append(m.SetHeaders, set(headerRank, strconv.Itoa(p.rank)))
	} else {
		m.RemoveHeaders = []string{headerRank}
	}
	if p.requestID != "" {
		m.SetHeaders = append(m.SetHeaders, set(headerRequestID, p.requestID))
	}
	return m
}

func set(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// metadata is the same for Envoy's own load balancer.
func (p *pick) metadata() *structpb.Struct {
	fields := map[string]*structpb.Value{destination: structpb.NewStringValue(p.list)}
	if p.gateway != "" {
		fields[keyGateway] = structpb.NewStringValue(p.gateway)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{namespaceLB: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}

// clientsOwn removes what a client must not set.
func clientsOwn() *extprocv3.HeaderMutation {
	return &extprocv3.HeaderMutation{RemoveHeaders: []string{destination}}
}

func requestHeaders(c *extprocv3.CommonResponse, md *structpb.Struct) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: c}},
		DynamicMetadata: md,
	}
}

func requestBody(c *extprocv3.CommonResponse, md *structpb.Struct) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: c}},
		DynamicMetadata: md,
	}
}

func requestTrailers(md *structpb.Struct) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}},
		DynamicMetadata: md,
	}
}

func responseHeaders() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}
}

func responseBody(c *extprocv3.CommonResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: c}}}
}

func responseTrailers() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
}

// pieces gives b back in pieces that Envoy takes; wrap makes an answer of one. At least one piece comes out if b ends the body.
func pieces(out []*extprocv3.ProcessingResponse, b []byte, end bool, wrap func(*extprocv3.CommonResponse) *extprocv3.ProcessingResponse) []*extprocv3.ProcessingResponse {
	for len(b) > 0 || end {
		n := min(len(b), maxPiece)
		piece := &extprocv3.StreamedBodyResponse{Body: b[:n:n], EndOfStream: end && n == len(b)}
		b = b[n:]
		out = append(out, wrap(&extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
			Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: piece},
		}}))
		if len(b) == 0 {
			break
		}
	}
	return out
}

// refusal is an answer in the engine's place.
type refusal struct {
	inbound.Refusal
	dropped string // llm-d's reason; "": none
	result  string // for the metrics
}

// immediate is the message for a refusal.
func (r *refusal) immediate(requestID string) *extprocv3.ProcessingResponse {
	h := []*corev3.HeaderValueOption{set("content-type", "application/json")}
	if requestID != "" {
		h = append(h, set(headerRequestID, requestID))
	}
	if r.RetryAfter > 0 {
		h = append(h, set("retry-after", strconv.Itoa(r.RetryAfter)))
	}
	if r.dropped != "" {
		h = append(h, set(headerDropped, r.dropped))
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(r.Status)},
		Headers: &extprocv3.HeaderMutation{SetHeaders: h},
		Body:    openai.ErrorBody(r.Status, r.Type, r.Message),
		Details: "grapevine_" + r.result,
	}}}
}
