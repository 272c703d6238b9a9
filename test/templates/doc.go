// Package templates holds the templates of configs/examples/templates to the programs
// that they are for: consul-template, built from source, against what Consul and Nomad answer,
// and, as the module proxy refuses docker-gen, the words of its language. It is a module of
// its own, so that svcproxy's has only what svcproxy needs.
package templates
