// Package rest holds the models of the agent's REST API, generated from api/openapi.yaml.
//
// The sub-package client calls the API, the sub-package server serves it. This package and client
// link nothing beyond the standard library and small helpers of the generator, because the CNI
// plugin, which starts anew for every pod, links them.
//
// Field names and codes are those of the Cilium agent's API. An optional field is a plain value
// that is left out of the JSON when it is zero; it is a pointer only where its absence has a
// meaning of its own. Readers must accept null where a list is expected.
package rest

//go:generate go tool oapi-codegen -config models.cfg.yaml ../openapi.yaml
