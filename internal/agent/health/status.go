package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/clusterhealth"
)

// Model is the state of each node.
func (h *Health) Model() rest.HealthStatus {
	all, round := h.prober.Statuses()
	out := rest.HealthStatus{Timestamp: time.Now().UTC(), ProbeInterval: round.String(), Local: rest.HealthSelf{Name: h.cfg.Self.String()}}
	for _, s := range all {
		n := rest.HealthNode{Name: s.Name, Host: modelOf(s.Node), HealthEndpoint: modelOf(s.Endpoint)}
		n.Endpoint = n.HealthEndpoint.PrimaryAddress
		out.Nodes = append(out.Nodes, n)
	}
	return out
}

func modelOf(paths []clusterhealth.Path) rest.HealthAddresses {
	var out rest.HealthAddresses
	for i, p := range paths {
		m := rest.HealthPath{IP: p.Addr.String(), ICMP: connectivity(p.ICMP), HTTP: connectivity(p.HTTP)}
		if p.HTTP.Unasked && p.HTTP.Err != "" {
			m.HTTP.Status = "answers no health checks: " + p.HTTP.Err
		}
		if i == 0 {
			out.PrimaryAddress = m
		} else {
			out.SecondaryAddresses = append(out.SecondaryAddresses, m)
		}
	}
	return out
}

func connectivity(c clusterhealth.Connectivity) rest.HealthConnectivity {
	return rest.HealthConnectivity{Latency: int64(c.Latency), Status: c.Err, LastProbed: c.Probed, Since: c.Since}
}

// maxNamed is how many nodes a line of the status names.
const maxNamed = 5

// Summary is the line of the agent's status. A node that is unreachable is no fault of this one's
// parts, and so only a warning there.
func (h *Health) Summary() rest.Status {
	all, round := h.prober.Statuses()
	var failing []string
	reachable, unknown, silent := 0, 0, 0
	for _, s := range all {
		of, since := clusterhealth.StateOf(slices.Concat(s.Node, s.Endpoint))
		switch of {
		case clusterhealth.Reachable:
			reachable++
		case clusterhealth.Unknown:
			unknown++
		case clusterhealth.Silent:
			silent++
		case clusterhealth.Unreachable:
			failing = append(failing, fmt.Sprintf("%s since %s", s.Name, since.UTC().Format(time.RFC3339)))
		}
	}
	st := rest.Status{State: rest.StateOk, Msg: fmt.Sprintf("%d of %d nodes reachable", reachable, len(all))}
	if unknown > 0 {
		st.Msg += fmt.Sprintf(", %d not probed yet (a round takes %s)", unknown, round)
	}
	if silent > 0 {
		st.Msg += fmt.Sprintf(", %d answer no health checks (of another version, or without --enable-health-checking)", silent)
	}
	if n := len(failing); n > 0 {
		st.State = rest.StateWarning
		st.Msg += "; not, or not in all ways: " + strings.Join(failing[:min(n, maxNamed)], ", ")
		if n > maxNamed {
			st.Msg += fmt.Sprintf(" and %d more", n-maxNamed)
		}
	}
	return st
}
