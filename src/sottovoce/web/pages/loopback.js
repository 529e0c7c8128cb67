// All that ties a page to a program on loopback: a call is one request, with the page's token.

import { Trouble } from "./trouble.js";
import { said } from "./words.js";

const SHORT = 8000;
export const LONG = 60000;

/** The token of this page's session, against forged requests. */
export const token = () => document.querySelector('meta[name="token"]')?.getAttribute("content") ?? "";

/** @param {number} status of an answer that gives nothing @param {Said} [told] what it says */
function judged(status, told) {
	if (status === 401 || status === 403) return new Trouble("over", said("trouble.session"));
	if (status === 409) return new Trouble("changed", told ?? said("trouble.other_tab"));
	return new Trouble("said", told ?? said("trouble.unexpected"));
}

/**
 * How a page on loopback asks.
 * @param {string} own the token of its session
 * @param {(status: number, told?: Said) => Trouble} [judge]
 */
export function line(own, judge = judged) {
	/** @param {string} path @param {RequestInit} [options] @param {number} [patience] */
	async function call(path, options = {}, patience = SHORT) {
		let response;
		try {
			response = await fetch(path, {
				...options,
				cache: "no-store",
				credentials: "same-origin",
				redirect: "error",
				signal: AbortSignal.timeout(patience),
			});
		} catch (error) {
			const late = error instanceof DOMException && error.name === "TimeoutError";
			throw new Trouble("gone", said(late ? "trouble.slow" : "trouble.agent_stopped"));
		}
		if (response.ok) return response;
		const body = await response.json().catch(() => ({}));
		throw judge(response.status, body.error);
	}

	/** @param {string} path @param {Record<string, string | number>} [asked] */
	const read = (path, asked = {}) =>
		call(`api/${path}?${new URLSearchParams(Object.entries(asked).map(([k, v]) => [k, String(v)]))}`);

	/** @param {string} path @param {unknown} body @param {number} [patience] */
	const send = (path, body, patience) =>
		call(
			`api/${path}`,
			{
				method: "POST",
				body: JSON.stringify(body),
				headers: {
					"Content-Type": "application/json",
					"X-Sottovoce-Token": own,
				},
			},
			patience,
		);

	return { call, read, send };
}

/**
 * The provider of a page on an agent's loopback API.
 * @param {string} own the token of its session
 * @returns {Provider}
 */
export function loopback(own) {
	const { call, read, send } = line(own);

	/** @param {string} path @param {unknown} body @param {number} [patience] */
	const post = async (path, body, patience) => (await send(path, body, patience)).json();

	return {
		words: async (language) => (await call(`words/${language}.json`)).json(),
		glossary: async () => (await call("words/glossary.json")).json(),
		state: async () => (await read("state")).json(),
		weigh: (store, change) => post("weigh", { store, change }),
		choose: (store, change) => post("choose", { store, change }),
		things: async (store, asked) => (await read("things", { store, ...asked })).json(),
		preview: (store) => post("preview", { store }, LONG),
		body: async (store, index) => (await read("preview/body", { store, index })).arrayBuffer(),
		send: (store, nonce) => post("send", { store, nonce }, LONG),
		ledger: async (store, asked) => (await read("ledger", { store, ...asked })).json(),
		row: async (store, row) => (await read("ledger/row", { store, row })).json(),
		export: async (store, format) => (await read("ledger/export", { store, format })).blob(),
		agree: (store, digest) => post("agree", { store, digest }),
		stop: (store, everything) => post("stop", { store, everything }),
		start: (store) => post("start", { store }),
		remove: (store, items) => post("remove", { store, items }),
		erase: (store, what) => post("erase", { store, what }, LONG),
		learn: (store) => post("learn", { store }, LONG),
		learnt: async (store) => (await read("learn", { store })).json(),
		recommend: (store, change) => post("recommend", { store, change }, LONG),
	};
}
