// Package flowmetrics counts flows for Prometheus, by the names, labels and options of Hubble.
//
// What it remembers is bounded: each metric has at most [MaxSeries] series, of which one sender
// makes at most [MaxSeriesOfSender]. What would be one more is counted in a series whose free
// labels, such as ports and pods, are "other", and hubble_metrics_folded_total says how often.
// Sums stay right. Series of pods that are gone are removed.
package flowmetrics
