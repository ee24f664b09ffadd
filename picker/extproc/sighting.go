package extproc

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// sighting is one HTTP request and its response on their way through another router, as an observing stream shows them. It is a
// core: messages in, nothing out. None is out of order: what it misses, it misses.
type sighting struct {
	limit int // bytes of a body

	headers headers
	subset  []string // not nil: the choice was restricted to it
	chosen  string   // address that the router chose, as far as that shows with the request; "": it does not
	rank    int      // that it chose; -1: it does not show

	chunks  [][]byte // of the request's body
	size    int      // their bytes
	ended   bool     // nothing more comes of the request
	skipped bool     // the body is not kept

	answer answer
	served string // address of who served; "": that does not show
}

// take takes in one message. It keeps the request's body. Ready, once: all of the request is there.
func (x *sighting) take(m *extprocv3.ProcessingRequest) (ready bool) {
	before := x.ended
	switch r := m.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		x.headers = r.RequestHeaders.GetHeaders().GetHeaders()
		x.subset = subsetOf(m.MetadataContext)
		x.chosen, x.rank = chosenBy(m.MetadataContext, x.headers)
		x.ended = x.ended || r.RequestHeaders.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestBody:
		x.body(r.RequestBody.GetBody())
		x.ended = x.ended || r.RequestBody.GetEndOfStream()
	case *extprocv3.ProcessingRequest_RequestTrailers:
		x.ended = true
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		x.answer.begin(r.ResponseHeaders.GetHeaders().GetHeaders(), m.MetadataContext, r.ResponseHeaders.GetEndOfStream())
		x.served = x.servedBy(m)
	case *extprocv3.ProcessingRequest_ResponseBody:
		x.answer.body(r.ResponseBody.GetBody(), r.ResponseBody.GetEndOfStream())
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		x.answer.trailers()
	}
	return x.ended && !before
}

func (x *sighting) body(b []byte) {
	if x.ended || x.skipped || len(b) == 0 {
		return
	}
	if x.size += len(b); x.size > x.limit {
		x.skip()
		return
	}
	x.chunks = append(x.chunks, b)
}

// skip lets the body go.
func (x *sighting) skip() { x.chunks, x.size, x.skipped = nil, 0, true }

// demand is what a choice would be made by.
func (x *sighting) demand() demand {
	return demand{headers: x.headers, subset: x.subset, chunks: x.chunks, size: x.size, whole: !x.skipped}
}

// chosenBy returns what an endpoint picker has chosen, which Envoy tells by metadata or the router by a header: the first of a
// list.
func chosenBy(md *corev3.Metadata, h headers) (address string, rank int) {
	list := md.GetFilterMetadata()[namespaceLB].GetFields()[destination].GetStringValue()
	if list == "" {
		list = h.Get(destination)
	}
	first, _, _ := strings.Cut(list, ",")
	rank, err := strconv.Atoi(h.Get(headerRank))
	if err != nil || rank < 0 {
		rank = -1
	}
	return canonical(first), rank
}

// servedBy returns who served, by the best that Envoy tells with the response: the load balancer that walks a picker's list says
// it, each router filter has it as an attribute, and a choice is what was meant.
func (x *sighting) servedBy(m *extprocv3.ProcessingRequest) string {
	if address := servedBy(m.MetadataContext); address != "" {
		return address
	}
	for _, fields := range m.GetAttributes() {
		if address := canonical(fields.GetFields()[attributeUpstream].GetStringValue()); address != "" {
			return address
		}
	}
	return x.chosen
}

// attributeUpstream is Envoy's name for host:port of who served.
const attributeUpstream = "upstream.address"
