// Package parity compares what Grapevine computes for prompts with the Python
// libraries that engines use, on the files of real models. Its tests need
// downloads: `make parity` fetches them.
package parity
