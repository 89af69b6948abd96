package observe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/flows"
)

// flowWriter shows what a server of flows answers.
type flowWriter struct {
	write func(*observer.GetFlowsResponse) error
	end   func() error
}

func newFlowWriter(a *command.App, format string, nodes bool, w io.Writer) (flowWriter, error) {
	nothing := func() error { return nil }
	switch format {
	case "compact":
		return flowWriter{func(res *observer.GetFlowsResponse) error {
			if st := res.GetNodeStatus(); st != nil {
				// Only a relay reports nodes, first those that are well, which need not be shown.
				first := !nodes
				nodes = true
				if first && st.GetStateChange() == relay.NodeState_NODE_CONNECTED {
					return nil
				}
			}
			_, err := fmt.Fprintln(w, flowLine(a, res, nodes))
			return err
		}, nothing}, nil
	case "dict":
		return flowWriter{func(res *observer.GetFlowsResponse) error {
			var buf bytes.Buffer
			if err := flowDict(a, &buf, res); err != nil {
				return err
			}
			_, err := buf.WriteTo(w)
			return err
		}, nothing}, nil
	case "json", "jsonpb":
		return flowWriter{func(res *observer.GetFlowsResponse) error { return writeJSONLine(w, res) }, nothing}, nil
	case "table":
		t := a.Table("TIME", "NODE", "SOURCE", "DESTINATION", "TYPE", "VERDICT", "SUMMARY")
		return flowWriter{func(res *observer.GetFlowsResponse) error {
			t.Row(flowCells(res)...)
			// Column widths are computed for a page at a time.
			if t.Len() < tablePage {
				return nil
			}
			err := t.Write(w)
			t.Clear()
			return err
		}, func() error {
			if t.Len() == 0 {
				return nil
			}
			return t.Write(w)
		}}, nil
	}
	return flowWriter{}, exitcode.Usagef("--output: %q is not one of compact, dict, table, json, jsonpb", format)
}

// tablePage is after how many rows a table is shown with widths of its own.
const tablePage = 1000

// flowTime is the time of an answer for people.
func flowTime(res *observer.GetFlowsResponse) string { return whenText(res.GetTime()) }

func whenText(at *timestamppb.Timestamp) string {
	return at.AsTime().Local().Format("Jan _2 15:04:05.000")
}

// flowLost reports how many events were lost, and where.
func flowLost(l *flow.LostEvent) string {
	where := map[flow.LostEventSource]string{
		flow.LostEventSource_PERF_EVENT_RING_BUFFER: "more came than the kernel could store",
		flow.LostEventSource_OBSERVER_EVENTS_QUEUE:  "more came than the agent could read",
		flow.LostEventSource_HUBBLE_RING_BUFFER:     "they were overwritten before they could be sent",
	}[l.GetSource()]
	if where == "" {
		where = l.GetSource().String()
	}
	return fmt.Sprintf("lost %d events: %s", l.GetNumEventsLost(), where)
}

// flowLine is an answer on one line, with the node that saw it if nodes is set.
func flowLine(a *command.App, res *observer.GetFlowsResponse, nodes bool) string {
	when := flowTime(res) + ": "
	if nodes && res.GetNodeName() != "" {
		when = flowTime(res) + " [" + output.Printable(res.GetNodeName()) + "]: "
	}
	switch {
	case res.GetLostEvents() != nil:
		return when + a.Paint(output.Warn, flowLost(res.GetLostEvents()))
	case res.GetNodeStatus() != nil:
		st := res.GetNodeStatus()
		return when + a.Paint(output.Warn, output.Printable(strings.TrimSpace(fmt.Sprintf("%s: %s %s", st.GetStateChange(), strings.Join(st.GetNodeNames(), ", "), st.GetMessage()))))
	}
	f := res.GetFlow()
	// The one who opened the connection is on the left.
	left, right, arrow := flowSource(f), flowDestination(f), "->"
	switch {
	case f.GetIsReply() == nil:
		arrow = "<>"
	case f.GetIsReply().GetValue():
		left, right, arrow = right, left, "<-"
	}
	verdict, look := flowVerdict(f)
	line := when + left + " " + arrow + " " + right + " " + flowKind(f) + " " + a.Paint(look, verdict)
	if what := flowSummary(f); what != "" {
		line += " (" + what + ")"
	}
	if by := flowPolicies(f); by != "" {
		line += " by " + by
	}
	return line
}

func flowCells(res *observer.GetFlowsResponse) []any {
	node := output.Printable(res.GetNodeName())
	switch {
	case res.GetLostEvents() != nil:
		return []any{flowTime(res), node, "", "", "lost", output.Warn.Cell(""), flowLost(res.GetLostEvents())}
	case res.GetNodeStatus() != nil:
		st := res.GetNodeStatus()
		return []any{flowTime(res), node, "", "", "node", output.Warn.Cell(st.GetStateChange().String()), output.Printable(strings.TrimSpace(strings.Join(st.GetNodeNames(), ", ") + " " + st.GetMessage()))}
	}
	f := res.GetFlow()
	verdict, look := flowVerdict(f)
	return []any{flowTime(res), node, flowSource(f), flowDestination(f), flowKind(f), look.Cell(verdict), flowSummary(f)}
}

func flowDict(a *command.App, w io.Writer, res *observer.GetFlowsResponse) error {
	out := a.Facts()
	out.Add("Time", flowTime(res))
	if f := res.GetFlow(); f != nil {
		verdict, look := flowVerdict(f)
		out.Add("Node", output.Printable(f.GetNodeName()))
		out.Add("Source", flowSource(f))
		out.Add("Source labels", f.GetSource().GetLabels())
		out.Add("Destination", flowDestination(f))
		out.Add("Destination labels", f.GetDestination().GetLabels())
		out.Add("Service", flowService(f.GetDestinationService()))
		out.Add("Type", flowKind(f))
		out.Add("Direction", strings.ToLower(f.GetTrafficDirection().String()))
		out.Add("Verdict", look.Cell(verdict))
		out.Add("Policies", flowPolicies(f))
		out.Add("Summary", flowSummary(f))
		out.Add("UUID", f.GetUuid())
	} else {
		cells := flowCells(res)
		out.Add("Node", output.Printable(res.GetNodeName()))
		out.Add("Type", cells[4])
		out.Add("Summary", cells[6])
	}
	if err := out.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "------------")
	return err
}

func flowSource(f *flow.Flow) string {
	port, _, _ := flows.Ports(f.GetL4())
	return flowParty(f.GetSource(), f.GetSourceService(), f.GetIP().GetSource(), f.GetEthernet().GetSource(), port)
}

func flowDestination(f *flow.Flow) string {
	_, port, _ := flows.Ports(f.GetL4())
	return flowParty(f.GetDestination(), f.GetDestinationService(), f.GetIP().GetDestination(), f.GetEthernet().GetDestination(), port)
}

func flowService(s *flow.Service) string {
	if s == nil {
		return ""
	}
	return s.GetNamespace() + "/" + s.GetName()
}

// flowParty is one side of a flow: the pod, the service or the address, with its port and who it
// is.
func flowParty(e *flow.Endpoint, s *flow.Service, ip, mac string, port uint32) string {
	who := ip
	switch {
	case e.GetPodName() != "":
		who = e.GetNamespace() + "/" + e.GetPodName()
	case s != nil:
		who = flowService(s)
	case who == "":
		who = mac
	}
	if port != 0 {
		if who == ip {
			who = net.JoinHostPort(ip, strconv.Itoa(int(port)))
		} else {
			who += ":" + strconv.Itoa(int(port))
		}
	}
	id := "ID:" + strconv.Itoa(int(e.GetIdentity()))
	for _, l := range e.GetLabels() {
		if name, ok := strings.CutPrefix(l, "reserved:"); ok {
			id = name
			break
		}
	}
	return output.Printable(who + " (" + id + ")")
}

// flowKind is what a flow was made of.
func flowKind(f *flow.Flow) string {
	switch f.GetEventType().GetType() {
	case flows.EventDrop:
		return "drop"
	case flows.EventVerdict:
		return "policy-verdict " + strings.ToLower(f.GetTrafficDirection().String())
	case flows.EventTrace:
		return strings.ReplaceAll(strings.ToLower(f.GetTraceObservationPoint().String()), "_", "-")
	}
	return "event " + strconv.Itoa(int(f.GetEventType().GetType()))
}

// flowVerdict is what became of the packet, with the reason if it was dropped.
func flowVerdict(f *flow.Flow) (string, output.Style) {
	switch f.GetVerdict() {
	case flow.Verdict_FORWARDED, flow.Verdict_REDIRECTED:
		return f.GetVerdict().String(), output.Good
	case flow.Verdict_DROPPED, flow.Verdict_ERROR:
		text := f.GetVerdict().String()
		if reason := flows.ReasonText(f); reason != "" {
			text += " " + reason
		}
		return text, output.Bad
	}
	return f.GetVerdict().String(), output.Warn
}

// flowSummary is the transport in a few words.
func flowSummary(f *flow.Flow) string {
	switch l4 := f.GetL4(); {
	case l4.GetTCP() != nil:
		var set []string
		flags := l4.GetTCP().GetFlags()
		for i, on := range []bool{flags.GetFIN(), flags.GetSYN(), flags.GetRST(), flags.GetPSH(), flags.GetACK(), flags.GetURG(), flags.GetECE(), flags.GetCWR(), flags.GetNS()} {
			if on {
				set = append(set, [...]string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR", "NS"}[i])
			}
		}
		return strings.TrimSpace("TCP " + strings.Join(set, ","))
	case l4.GetUDP() != nil:
		return "UDP"
	case l4.GetSCTP() != nil:
		return "SCTP"
	case l4.GetICMPv4() != nil:
		return fmt.Sprintf("ICMPv4 type %d code %d", l4.GetICMPv4().GetType(), l4.GetICMPv4().GetCode())
	case l4.GetICMPv6() != nil:
		return fmt.Sprintf("ICMPv6 type %d code %d", l4.GetICMPv6().GetType(), l4.GetICMPv6().GetCode())
	}
	return ""
}

// flowPolicies names those that decided.
func flowPolicies(f *flow.Flow) string {
	var out []string
	for _, list := range [][]*flow.Policy{f.GetEgressAllowedBy(), f.GetIngressAllowedBy(), f.GetEgressDeniedBy(), f.GetIngressDeniedBy()} {
		for _, p := range list {
			name := p.GetName()
			if p.GetNamespace() != "" {
				name = p.GetNamespace() + "/" + name
			}
			out = append(out, output.Printable(name))
		}
	}
	return strings.Join(out, ", ")
}

// writeJSONLine writes a message as one line of JSON, with the names of the protobuf definitions.
func writeJSONLine(w io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil { // its blanks differ from one program to another
		return err
	}
	line.WriteByte('\n')
	_, err = line.WriteTo(w)
	return err
}
