package flowmetrics

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-net/hawser/api/flow"
)

// Bounds of what is remembered.
const (
	// MaxSeries is how many series a metric has at most, and MaxSeriesOfSender how many of them are
	// of one sender, which is an identity: a port scan must leave room to other senders.
	MaxSeries         = 8192
	MaxSeriesOfSender = MaxSeries / 8
	// maxValue is how long the value of a label is at most, in bytes.
	maxValue = 512
	// idle is how long a series was not counted before it makes room for others, if these need
	// it.
	idle = time.Hour
)

// other is the value of labels of what was one series too many.
const other = "other"

// Metrics counts flows. It is a [prometheus.Collector], safe for concurrent use.
type Metrics struct {
	mu       sync.Mutex
	families []*family
	lost     map[flow.LostEventSource]uint64

	lostDesc, foldedDesc *prometheus.Desc
}

var _ prometheus.Collector = (*Metrics)(nil)

// series is one combination of values of labels.
type series struct {
	values []string
	n      uint64
	at     time.Time // when it was counted last
	sender uint32    // whose share it is part of
	// pods are those that the values name, of the source and of the destination; absent means that
	// one of them did not exist at the last sweep.
	pods   [2]Pod
	absent bool
	folded bool // it is of what there was no room for
}

// family are the series of a metric.
type family struct {
	Metric
	desc   *prometheus.Desc
	series map[string]*series
	shares map[uint32]int // series by sender
	rest   map[string]*series
	folded uint64
	// values and key are room to work with.
	values []string
	key    []byte
}

// New returns the metrics of a list, with nothing counted.
func New(list []Metric) *Metrics {
	m := &Metrics{
		lost:       map[flow.LostEventSource]uint64{},
		lostDesc:   prometheus.NewDesc("hubble_lost_events_total", "Events of which no flow was made, because they could not be stored or read in time.", []string{"source"}, nil),
		foldedDesc: prometheus.NewDesc("hubble_metrics_folded_total", "Times that a flow was counted as \"other\", because its metric had no room for another series.", []string{"metric"}, nil),
	}
	for _, metric := range list {
		names := slices.Concat(metric.kind.labels, metric.names())
		m.families = append(m.families, &family{
			Metric: metric, desc: prometheus.NewDesc(metric.kind.metric, metric.kind.help, names, nil),
			series: map[string]*series{}, shares: map[uint32]int{}, rest: map[string]*series{},
		})
	}
	return m
}

// Foreign has the ends of a flow whose address is not that of the pod which the flow names: it is a
// service's, or forged.
type Foreign struct{ Source, Destination bool }

// Add counts a flow. A dropped packet is not counted by an address that it may have forged: its
// sender could otherwise add to another pod's counters, or create series without end.
func (m *Metrics) Add(f *flow.Flow, foreign Foreign, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, fam := range m.families {
		fam.kind.count(f, func(values ...string) { fam.add(f, foreign, now, values) })
	}
}

// Lose counts events of which no flow was made.
func (m *Metrics) Lose(source flow.LostEventSource, n uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost[source] += n
}

func (f *family) add(fl *flow.Flow, foreign Foreign, now time.Time, own []string) {
	values, ofSource, ofDestination := f.contexts.values(append(f.values[:0], own...), fl, foreign)
	f.values = values
	f.setKey()
	s := f.find()
	if s == nil {
		sender := fl.GetSource().GetIdentity()
		if len(f.series) < MaxSeries && f.shares[sender] < MaxSeriesOfSender {
			s = newSeries(values)
			s.sender = sender
			f.series[string(f.key)] = s
			f.shares[sender]++
		} else {
			f.folded++
			s = f.fold(len(own))
		}
	}
	if !s.folded {
		s.name(ofSource, podOf(fl.GetSource()), 0)
		s.name(ofDestination, podOf(fl.GetDestination()), 1)
	}
	s.n++
	s.at = now
}

// name notes that a flow of the series names a pod at one side. Counts of a pod that had the
// address before are not this one's: the series is reset, as by a restart.
func (s *series) name(of bool, p Pod, side int) {
	if !of || p.Name == "" || s.pods[side] == p {
		return
	}
	if s.pods[side] != (Pod{}) {
		s.n = 0
	}
	s.pods[side], s.absent = p, false
}

// find returns the series of f.key, nil if there is none. A real value may equal the name of the
// overflow series: the same values are the same series.
func (f *family) find() *series {
	if s := f.series[string(f.key)]; s != nil {
		return s
	}
	return f.rest[string(f.key)]
}

// setKey makes the key of f.values, which become what Prometheus takes: no two lists of values have
// the same.
func (f *family) setKey() {
	f.key = f.key[:0]
	for i, v := range f.values {
		if len(v) > maxValue {
			v = v[:maxValue]
		}
		if !utf8.ValidString(v) {
			v = strings.ToValidUTF8(v, "")
		}
		f.values[i] = v
		f.key = append(append(f.key, v...), 0xff) // which is in no text
	}
}

// fold returns the series of what there was no room for: only the labels that senders do not
// choose have their values. Of these there are few.
func (f *family) fold(own int) *series {
	if f.kind.free {
		own--
	}
	for i := own; i < len(f.values); i++ {
		f.values[i] = other
	}
	f.setKey()
	s := f.find()
	if s == nil {
		s = newSeries(f.values)
		s.folded = true
		f.rest[string(f.key)] = s
	}
	return s
}

func newSeries(values []string) *series {
	s := &series{values: make([]string, len(values))}
	for i, v := range values {
		s.values[i] = strings.Clone(v) // not of something larger
	}
	return s
}

// OfPods reports whether there are series that name pods.
func (m *Metrics) OfPods() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.families {
		for _, s := range f.series {
			if s.pods != [2]Pod{} {
				return true
			}
		}
	}
	return false
}

// Sweep removes the series that name a pod which was unknown at the last sweep, too. Where half of
// the room is taken, of a metric or of a sender in it, it removes those that were not counted for
// an hour.
func (m *Metrics) Sweep(now time.Time, known map[Pod]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.families {
		narrow, before := len(f.series) > MaxSeries/2, maps.Clone(f.shares)
		for key, s := range f.series {
			wasAbsent := s.absent
			s.absent = slices.ContainsFunc(s.pods[:], func(p Pod) bool { return p != Pod{} && !known[p] })
			gone := wasAbsent && s.absent
			if gone || (narrow || before[s.sender] > MaxSeriesOfSender/2) && now.Sub(s.at) > idle {
				delete(f.series, key)
				if f.shares[s.sender]--; f.shares[s.sender] == 0 {
					delete(f.shares, s.sender)
				}
			}
		}
	}
}

// Describe sends nothing: the collector is checked by its values.
func (m *Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect sends the counters. A slow reader does not block counting.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	var out []prometheus.Metric
	counter := func(d *prometheus.Desc, n uint64, values ...string) {
		out = append(out, prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), values...))
	}
	for _, f := range m.families {
		m.mu.Lock()
		list := make([]series, 0, len(f.series)+len(f.rest))
		for _, all := range []map[string]*series{f.series, f.rest} {
			for _, s := range all {
				list = append(list, *s)
			}
		}
		folded := f.folded
		m.mu.Unlock()
		for _, s := range list {
			counter(f.desc, s.n, s.values...)
		}
		counter(m.foldedDesc, folded, f.kind.name)
	}
	m.mu.Lock()
	for _, source := range []flow.LostEventSource{flow.LostEventSource_PERF_EVENT_RING_BUFFER, flow.LostEventSource_OBSERVER_EVENTS_QUEUE} {
		counter(m.lostDesc, m.lost[source], strings.ToLower(source.String()))
	}
	m.mu.Unlock()
	for _, metric := range out {
		ch <- metric
	}
}
